"""What refuses a run before its work begins imports neither torch nor Ray, and leaves nothing."""

import shlex

import pytest
import yaml

from tests.cli.conftest import Workplace
from tests.cli.light import check_light

ROWS = {
    "method": "privorl_ar",
    "data": {
        "sensitive": "clinic/stays-v0",
        "public": ["clinic/public-v0"],
        "unit": "transition",
        "units": 200,
        "environment": "privrl/Maze2D-umaze-v0",
    },
    "privacy": {"epsilon": 8, "delta": 1e-5},
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


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("refused"))
    for name, values in (("rows", ROWS), ("counts", COUNTS)):
        (place.folder / f"{name}.yaml").write_text(yaml.safe_dump(values))
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


def refused(place, config, options, code, said):
    words = shlex.split(options.format(folder=place.folder))
    out = [] if "--out" in words else ["--out", str(place.folder / "run")]
    shown = check_light(
        ["run", str(place.folder / f"{config}.yaml"), *out, *words],
        code,
        may_import={"numba", "pandas"},  # by rows, which are read before the ledger is asked
        MINARI_DATASETS_PATH=str(place.datasets),
        PRIVRL_LEDGER=place.ledger,
    )
    assert said in shown.splitlines()[-1]
    assert not (place.folder / "run").exists()
