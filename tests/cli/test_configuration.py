import json

import jsonschema
import pytest
import yaml

from tests.docs.pages import CONFIGURATIONS, ROOT

from .conftest import CONFIG


def test_show_fills_in_defaults_and_can_be_read_again(workplace):
    shown = workplace.privrl("config", "show", workplace.config, "-o", "privacy.epsilon=2.5")
    assert shown.exit_code == 0
    values = yaml.safe_load(shown.stdout)
    assert values["privacy"]["epsilon"] == 2.5
    assert values["privacy"]["accountant"] == "pld"
    workplace.config.write_text(shown.stdout)
    assert workplace.privrl("config", "show", workplace.config).stdout == shown.stdout


@pytest.mark.parametrize("path", CONFIGURATIONS, ids=lambda path: path.stem)
def test_what_differs_from_the_defaults_is_the_same_run(workplace, path):
    shown = workplace.privrl("config", "show", path, "--changed")
    assert shown.exit_code == 0
    short = workplace.config.with_name("short.yaml")
    short.write_text(shown.stdout)
    everything = [workplace.privrl("config", "show", one).stdout for one in (path, short)]
    assert everything[0] == everything[1]
    assert len(shown.stdout) < len(everything[0]) / 2


def test_validate(workplace):
    assert workplace.privrl("config", "validate", workplace.config).exit_code == 0
    wrong = workplace.privrl("config", "validate", workplace.config, "-o", "training.rounds=0")
    assert wrong.exit_code == 2
    assert "training.rounds=0" in wrong.stderr
    assert wrong.stdout == ""


MAZE = ("-o", "data.environment=privrl/Maze2D-umaze-v0")


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((*MAZE, "-o", "evaluation.trainers=[rllib_iql]"), 0, ""),
        ((*MAZE, "-o", "evaluation.trainers=[none]"), 2, "unknown trainer 'none'"),
        ((*MAZE, "-o", "evaluation.trainers=[discrete_cql]"), 2, "must be a Discrete"),
        (
            (*MAZE, *("-o", "evaluation.trainers=[iql]", "-o", "evaluation.options={iql: {b: 1}}")),
            *(2, "'iql' has no option b"),
        ),
        (("-o", "evaluation.trainers=[iql]"), 2, "needs data.environment"),
        (("-o", "data.bounds=environment", "-o", "data.environment=No-v1"), 2, "'No-v1' cannot be"),
        ((*MAZE, "-o", "data.bounds=environment"), 0, ""),
        ((*MAZE, "-o", "evaluation.trainers=[rllib_bc]", "-o", "privacy.epsilon=null"), 4, "null"),
    ],
)
def test_validate_passes_nothing_that_run_refuses(workplace, options, code, message):
    result = workplace.privrl("config", "validate", workplace.config, *options)
    assert result.exit_code == code, result.output
    assert message in result.stderr


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ((), 0, "valid configuration of primorl"),
        (("-o", "data.environment=No-v1"), 2, "'No-v1' cannot be made"),
        (("-o", "evaluation.trainers=[iql]"), 2, "primorl releases none: leave them out"),
    ],
)
def test_validate_checks_what_a_policy_s_configuration_names(workplace, options, code, message):
    path = ROOT / "tune_configs" / "primorl_pendulum.yaml"
    result = workplace.privrl("config", "validate", path, *options)
    assert result.exit_code == code, result.output
    assert message in result.output


INTEGERS = ", because its workers only add up integers, which is no work for a GPU"
ON_CPUS = {
    "apvi_icu_sepsis": INTEGERS,
    "vapvi_linear_mdp": INTEGERS,
}


@pytest.mark.parametrize("verb", ["plan", "config validate", "run"])
@pytest.mark.parametrize("name", ON_CPUS)
def test_gpus_are_refused_where_all_is_computed_on_cpus(workplace, name, verb):
    path = ROOT / "tune_configs" / f"{name}.yaml"
    out = ("--out", workplace.folder / "run") if verb == "run" else ()
    for more in ((), ("-o", COUNTED)):
        options = ("-o", "runtime.gpus_per_worker=0.5", *more)
        refused = workplace.privrl(*verb.split(), path, *out, *options)
        assert refused.exit_code == 2, refused.output
        (line,) = refused.stderr.splitlines()
        assert line.startswith("error: runtime.gpus_per_worker=0.5, but ")
        assert line.endswith(f" computes on CPUs alone{ON_CPUS[name]}: set it to 0")
    assert not (workplace.folder / "run").exists()


NO_PUBLIC = ("data.public=[]", "training.pretraining.steps=0", "evaluation.trainers=[]")
UNBOUNDED = {
    "primorl_pendulum": ("training.policy.starts={epsilon: 0.1}",),
    "expert_cartpole": (),
    "privorl_n_maze2d": NO_PUBLIC,
    "privorl_ar_maze2d": NO_PUBLIC,
    "privorl_j_maze2d": NO_PUBLIC,
}
COUNTED = "data.units={epsilon: 0.1}"


@pytest.mark.parametrize("verb", ["plan", "config validate"])
@pytest.mark.parametrize("name", UNBOUNDED)
def test_what_has_no_bounds_is_refused_before_it_is_run(workplace, name, verb):
    def tried(*overrides):
        options = [word for one in overrides for word in ("-o", one)]
        return workplace.privrl(*verb.split(), ROOT / "tune_configs" / f"{name}.yaml", *options)

    changed = (*UNBOUNDED[name], "data.environment=null")
    counted = () if verb == "plan" or name.startswith("expert") else ((COUNTED,),)
    for more in ((), ("data.bounds=environment",), *counted):
        refused = tried("data.bounds=null", *changed, *more)
        assert refused.exit_code == 2, refused.output
        assert "the columns have no bounds: name data.public datasets, a data" in refused.stderr
    refused = tried(*changed, "data.bounds=public")
    assert refused.exit_code == 2
    assert "data.bounds=public needs data.public" in refused.stderr
    file = workplace.folder / "bounds.yaml"
    refused = tried(*changed, f"data.bounds={file}")
    assert refused.exit_code == 2
    assert "there is no such file" in refused.stderr
    file.write_text("observation: {low: 0, high: 1}\nreward: [0]\n")
    refused = tried(*changed, f"data.bounds={file}")
    assert refused.exit_code == 2
    assert f"error: {file}: 'reward.1' is missing" in refused.stderr
    file.write_text("observation: {low: 0, high: 1}\nreward: [0, 1]\n")
    named = tried(*changed, f"data.bounds={file}")
    assert named.exit_code == 0, named.output


def test_noisy_bounds_need_a_range_to_search_in(workplace):
    searched = "data.bounds={epsilon: 1, search: environment}"
    for more in ((), ("-o", COUNTED)):
        refused = workplace.privrl("config", "validate", workplace.config, "-o", searched, *more)
        assert refused.exit_code == 2, refused.output
        assert "the columns have no bounds" in refused.stderr


def test_pretraining_without_public_rows_is_refused_before_it_is_run(workplace):
    for verb in (("plan",), ("config", "validate")):
        refused = workplace.privrl(*verb, workplace.config, "-o", "data.public=[]", *MAZE)
        assert refused.exit_code == 2, refused.output
        assert "training.pretraining.steps > 0 needs data.public" in refused.stderr


@pytest.mark.parametrize("arguments", [(), ("--method", "privorl_n")])
def test_schema_accepts_what_is_right_and_nothing_else(workplace, arguments):
    schema = json.loads(workplace.privrl("config", "schema", *arguments).stdout)
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    validator.validate(CONFIG)
    for wrong in (
        {**CONFIG, "surprise": 1},
        {**CONFIG, "method": "other"},
        {**CONFIG, "privacy": {"epsilon": -1, "delta": 1e-6}},
        {key: value for key, value in CONFIG.items() if key != "output"},
    ):
        assert not validator.is_valid(wrong)


def test_schema_of_an_unknown_method(workplace):
    result = workplace.privrl("config", "schema", "--method", "magic")
    assert result.exit_code == 2
    assert "privorl_n" in result.stderr
