"""What refuses a run before its work begins imports neither torch nor Ray, and leaves nothing."""

import shlex

import pytest
import yaml

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import METHODS
from tests.cli.conftest import CONFIG, Workplace
from tests.cli.light import check_light
from tests.worlds.crowd import BOUNDS, config_values, crowd, recorded, write_crowd
from tests.worlds.crowd import DATASET as CROWD
from tests.worlds.grid import values
from tests.worlds.judged import HORIZON, MADE, PATIENTS, REAL, RETURNS, Judged

RENYI = {"epsilon": 8, "delta": 1e-5, "accountant": "rdp"}
"""Counted in no time; `CONFIG` leaves the accountant to its default."""
ROWS = {
    "method": "privorl_ar",
    "data": {
        "sensitive": "clinic/stays-v0",
        "public": ["clinic/public-v0"],
        "unit": "transition",
        "units": 200,
        "environment": "privrl/Maze2D-umaze-v0",
    },
    "privacy": RENYI,
    "model": {"hidden": [8], "bins": 8},
    "training": {
        "rounds": 3,
        "expected_batch_size": 16,
        "pretraining": {"steps": 2, "batch_size": 16},
    },
    "output": {"dataset": "clinic/private-v0", "size": 40},
    "runtime": {"workers": 1, "executor": "ray"},
}
COUNTS = {
    "method": "marginals",
    "data": {
        "sensitive": "clinic/stays-v0",
        "unit": "transition",
        "units": 200,
        "environment": "privrl/Maze2D-umaze-v0",
    },
    "privacy": {"epsilon": 8, "delta": 1e-5},
    "output": {"dataset": "clinic/private-v0", "size": 40},
    "runtime": {"workers": 1, "executor": "ray"},
}
WHOLE = {"sensitive": "clinic/stays-v0", "unit": "trajectory", "units": 20, "max_length": 40}
PUBLIC = {**WHOLE, "public": ["clinic/public-v0"], "environment": "privrl/Maze2D-umaze-v0"}
ALONE = {**WHOLE, "bounds": "environment", "environment": "privrl/Maze2D-umaze-v0"}
FRAGMENTS = {
    "data": PUBLIC,
    "privacy": RENYI,
    "model": {"horizon": 8},
    "training": {"rounds": 3, "expected_batch_size": 5, "pretraining": {"steps": 2}},
    "output": {"dataset": "clinic/private-v0", "size": 40},
}
ENSEMBLE = {
    "data": ALONE,
    "privacy": RENYI,
    "training": {"rounds": 3, "expected_batch_size": 5},
}
VALUE = {
    "data": {"sensitive": REAL, "unit": "patient", "units": PATIENTS},
    "privacy": {"epsilon": 2},
    "model": {"release": MADE, "returns": list(RETURNS), "horizon": HORIZON},
    "training": {"trainer": "bc", "steps": 40},
}
PATHS = {
    "data": ALONE,
    "privacy": {"epsilon": 8, "delta": 1e-5},
    "output": {"dataset": "clinic/private-v0", "size": 40},
}
VOTES = {
    "data": {**COUNTS["data"], "public": ["clinic/public-v0"]},
    "privacy": {"epsilon": 8, "delta": 1e-5},
    "output": {"dataset": "clinic/private-v0", "size": 40},
}
TEXTS = {
    "data": {"sensitive": "clinic/notes-v0", "unit": "author", "units": 1000},
    "privacy": {"epsilon": 1, "delta": 1e-6},
    "model": {"language": "language"},
    "output": {"size": 5},
}
MORE = {
    "privorl_n": CONFIG,
    **dict.fromkeys(("privorl_j", "privorl_j_unet", "privorl_ar_j", "dp_transformer"), FRAGMENTS),
    **dict.fromkeys(("marginals_j", "pgm", "privsyn"), PATHS),
    "pate_gan": VOTES,
    "pre_pate_gan": VOTES,
    "primorl": ENSEMBLE,
    "mopo": {**ENSEMBLE, "privacy": {"epsilon": None, "delta": 1e-5}},
    "expert": config_values(),
    "apvi": values("apvi"),
    "vapvi": values("vapvi"),
    "policy_value": VALUE,
    "dprft": TEXTS,
    "dp_fine_tuning": TEXTS,
}
"""All methods but those of `ROWS` and `COUNTS`."""


def test_every_method_is_here():
    assert {ROWS["method"], COUNTS["method"], *MORE} == set(METHODS)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("refused"))
    configs = {name: {**config, "method": name} for name, config in MORE.items()}
    for name, config in {"rows": ROWS, "counts": COUNTS, **configs}.items():
        config = {**config, "runtime": {"workers": 1, "executor": "ray"}}
        (place.folder / f"{name}.yaml").write_text(yaml.safe_dump(config))
    (place.folder / "bounds.yaml").write_text(BOUNDS)
    Judged(place.folder)
    acted = crowd()
    write_crowd(DatasetStore(place.datasets), acted, *recorded(acted))
    for recipe, dataset in (
        ("maze2d-umaze", "clinic/stays-v0"),
        ("maze2d-medium", "clinic/public-v0"),
    ):
        made = place.privrl("collect", recipe, "--dataset", dataset, "--steps", 200)
        assert made.exit_code == 0, made.output
    (place.folder / "held").mkdir()
    (place.folder / "held" / "notes.txt").write_text("mine")
    budget = "ledger budget clinic/stays-v0 --epsilon 1 --delta 1e-5 --unit transition"
    low = place.privrl(*shlex.split(budget), "--ledger", f"sqlite:///{place.folder / 'low.sqlite'}")
    assert low.exit_code == 0, low.output
    return place


@pytest.mark.parametrize("config", ["rows", "counts"])
@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        ("-o data.sensitive=clinic/none-v0", 2, "no dataset 'clinic/none-v0'"),
        ("-o data.unit=patient_id", 2, "has no unit 'patient_id'"),
        ("-o output.dataset=clinic/stays-v0", 2, "must all be different datasets"),
        ("-o privacy.delta=0.01", 4, "is not below 1/units"),
        ("--out {folder}/held", 2, "is not empty and holds no run"),
        ("--resume", 2, "holds no run to go on with"),
        ("", 3, "no budget is set for clinic/stays-v0"),
        ("--ledger sqlite:///{folder}/low.sqlite", 3, "this needs 8 and 1e-05"),
    ],
)
def test_refusals_load_neither_torch_nor_ray(place, config, options, code, said):
    refused(place, config, options, code, said)


@pytest.mark.parametrize(
    ("config", "options", "code", "said"),
    [
        ("counts", "-o privacy.epsilon=0.002 -o privacy.delta=1e-6", 8, "would be useless"),
        ("rows", "-o evaluation.trainers=[sarsa]", 2, "unknown trainer 'sarsa'"),
        ("rows", "-o evaluation.trainers=[discrete_cql]", 2, "must be a Discrete"),
        (
            "rows",
            "-o evaluation.trainers=[bc] -o evaluation.options.bc.beta=3",
            2,
            "no option beta",
        ),
        (
            "rows",
            "-o evaluation.trainers=[rllib_bc] -o privacy.epsilon=null",
            4,
            "rllib_bc may not read what this run makes",
        ),
    ],
)
def test_refusals_of_one_kind_load_neither(place, config, options, code, said):
    refused(place, config, options, code, said)


@pytest.mark.parametrize(
    ("config", "options", "dataset"),
    [
        ("privorl_n", "", "clinic/stays-v0"),
        ("privorl_j", "", "clinic/stays-v0"),
        ("privorl_j_unet", "", "clinic/stays-v0"),
        ("privorl_ar_j", "", "clinic/stays-v0"),
        ("dp_transformer", "", "clinic/stays-v0"),
        ("marginals_j", "--anyway", "clinic/stays-v0"),
        ("privsyn", "", "clinic/stays-v0"),
        ("pate_gan", "", "clinic/stays-v0"),
        ("pre_pate_gan", "", "clinic/stays-v0"),
        ("primorl", "--anyway", "clinic/stays-v0"),
        ("expert", "-o data.bounds={folder}/bounds.yaml", CROWD),
        ("apvi", "", REAL),
        ("vapvi", "", REAL),
        ("policy_value", "", REAL),
    ],
)
def test_no_method_without_a_budget_loads_either(place, config, options, dataset):
    refused(place, config, options, 3, f"no budget is set for {dataset}")


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ("privorl_n", "-o training.pretraining.steps=0"),
        ("privorl_j", "-o training.pretraining.steps=0"),
        ("privorl_ar_j", "-o training.pretraining.steps=0"),
        ("marginals_j", ""),
        ("primorl", ""),
        ("policy_value", "-o privacy.epsilon=0.01"),
    ],
)
def test_no_hopeless_method_loads_either(place, config, options):
    refused(place, config, options, 8, "would be useless")


def test_what_needs_no_budget_is_refused_without_either(place):
    said = "model.difference_share has 3 numbers"
    refused(place, "mopo", "-o model.difference_share=[1,1,1]", 2, said)


def refused(place, config, options, code, said):
    words = shlex.split(options.format(folder=place.folder))
    out = [] if "--out" in words else ["--out", str(place.folder / "run")]
    shown = check_light(
        ["run", str(place.folder / f"{config}.yaml"), *out, *words],
        code,
        may_import={"numba", "pandas", "sqlalchemy"},  # rows are read, and the ledger is asked
        MINARI_DATASETS_PATH=str(place.datasets),
        PRIVRL_LEDGER=place.ledger,
    )
    assert said in shown.splitlines()[-1]
    assert not (place.folder / "run").exists()
