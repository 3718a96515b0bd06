import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from distributed_privrl.cli.app import app
from tests.cli.light import check_light

VERBS = {
    "audit",
    "certificate",
    "collect",
    "config",
    "demo",
    "doctor",
    "evaluate",
    "export",
    "import",
    "init",
    "ledger",
    "plan",
    "rehearse",
    "remove",
    "report",
    "run",
    "sample",
    "split",
    "submit",
    "sweep",
}


def commands(command=None, path=("privrl",)):
    command = command or typer.main.get_command(app)
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))


def test_verbs_are_those_of_the_contract():
    assert set(typer.main.get_command(app).commands) == VERBS


@pytest.mark.parametrize("path", [path for path, _ in commands()], ids=" ".join)
def test_every_help_has_examples_that_parse(workplace, understands, path):
    shown = workplace.privrl(*path[1:], "--help")
    assert shown.exit_code == 0
    assert shown.stderr == ""
    examples = re.findall(r"^ +(privrl .*)$", shown.stdout.split("Examples:")[1], re.MULTILINE)
    assert examples
    for example in examples:
        assert example.startswith(" ".join(path))
        assert understands(example)


def test_every_option_says_what_it_is_for():
    for path, command in commands():
        for parameter in command.params:
            assert getattr(parameter, "help", None), (path, parameter.name)


@pytest.mark.parametrize("group", [(), ("ledger",), ("certificate",), ("config",)])
def test_a_group_alone_shows_its_help(workplace, group):
    alone, asked = workplace.privrl(*group), workplace.privrl(*group, "--help")
    assert alone.exit_code == 0
    assert alone.stdout == asked.stdout


def test_version(workplace):
    shown = workplace.privrl("--version")
    assert shown.exit_code == 0
    assert re.fullmatch(r"privrl \d+\.\d+\.\d+\n", shown.stdout)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("plna stays.yaml", "Did you mean 'plan'"),
        ("run", "CONFIG.yaml"),
        ("run stays.yaml", "--out"),
        ("run stays.yaml --out runs --wrong", "--wrong"),
        ("export a-v0 --format xlsx --out a", "xlsx"),
        ("collect maze2d-umaze --dataset a-v0 --steps many", "--steps"),
        ("ledger budget a-v0 --epsilon 1 --delta 1e-6", "--unit"),
        ("evaluate --synthetic a-v0 --out o --seeds 0", "--seeds"),
        ("ledger budge", "budge"),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(workplace, line, said):
    result = workplace.privrl(*line.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert said in result.stderr
    assert "--help`" in result.stderr


def test_start_loads_neither_ray_nor_torch():
    script = (
        "import json, sys\n"
        "import distributed_privrl.cli\n"
        "sys.argv = ['privrl', '--help']\n"
        "try:\n"
        "    distributed_privrl.cli.main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        "print(json.dumps(sorted(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(done.stderr))
    assert "distributed_privrl.cli.running" in loaded
    heavy = {"ray", "torch", "jax", "mbi", "numpy", "pandas", "gymnasium", "pydantic"}
    heavy |= {"sqlalchemy", "rich"}
    assert not loaded & heavy
    assert done.stdout.startswith("Usage: privrl")


@pytest.mark.parametrize(
    "line",
    [
        "evaluate --synthetic none-v0 --out o",
        "evaluate --synthetic none-v0 --out o --trainers none,bc",
        "evaluate --synthetic none-v0 --out o -o beta=3",
        "audit {folder} --out o",
        "audit {file} --out {folder}",
        "audit {folder}/none --out o",
    ],
)
def test_cheap_mistakes_load_neither_ray_nor_torch(workplace, line):
    words = line.format(folder=workplace.folder, file=workplace.config).split()
    check_light(words, 2, may_import={"numba", "pandas", "matplotlib", "sqlalchemy"}, nor={"scipy"})


def test_what_a_command_imports_or_ends_with_is_seen(workplace):
    line = ["evaluate", "--synthetic", "none-v0", "--out", "o"]
    with pytest.raises(AssertionError, match=r"\{'distributed_privrl.cli.evaluation'\}"):
        check_light(
            line,
            2,
            may_import={"numba", "pandas", "sqlalchemy"},
            nor={"distributed_privrl.cli.evaluation"},
        )
    with pytest.raises(AssertionError, match="numba"):
        check_light(["run", str(workplace.config), "--out", str(workplace.folder / "o")], 2)
    with pytest.raises(AssertionError, match="AssertionError: 2"):
        check_light(line, 3, nor={"scipy"})


ROUNDS = """
method: privorl_ar
data: {sensitive: clinic/stays-v0, unit: patient_id, units: 20000, environment: CartPole-v1}
privacy: {epsilon: 4, delta: 1.0e-6, accountant: rdp}
training: {rounds: 10, expected_batch_size: 100, pretraining: {steps: 0}}
evaluation: {trainers: [bc]}
output: {dataset: clinic/private-v0, size: 10}
"""
AGENTS = """
method: privorl_ar
data: {sensitive: clinic/stays-v0, unit: patient_id, units: 20000, environment: CartPole-v1}
privacy: {epsilon: 4, delta: 1.0e-6, accountant: rdp}
training: {rounds: 10, expected_batch_size: 100, pretraining: {steps: 0}}
evaluation:
  trainers: [bc, rllib_discrete_cql, discrete_bcq]
  options: {bc: {hidden: [8]}, discrete_bcq: {threshold: 0.5}}
output: {dataset: clinic/private-v0, size: 10}
"""
FRAGMENTS = """
method: privorl_j
data:
  sensitive: clinic/stays-v0
  unit: trajectory
  units: 20000
  max_length: 64
  environment: CartPole-v1
privacy: {epsilon: 4, delta: 1.0e-6, accountant: rdp}
model: {width: 64}
training: {rounds: 10, expected_batch_size: 100, pretraining: {steps: 0}}
output: {dataset: clinic/private-v0, size: 10}
"""
COUNTS = """
method: marginals
data: {sensitive: clinic/stays-v0, unit: patient_id, units: 20000, bounds: BOUNDS}
privacy: {epsilon: 4, delta: 1.0e-6}
output: {dataset: clinic/private-v0, size: 10}
"""


VALUE = """
method: policy_value
data: {sensitive: ward/stays-v0, unit: patient, units: 20000}
privacy: {epsilon: 2}
model: {release: made/stays-v0, returns: [0, 1], horizon: 20}
training: {trainer: bc}
"""
TUNED = Path(__file__).parents[2] / "tune_configs"
PLANNING = pytest.mark.parametrize("verb", ["plan", "config validate"])


@PLANNING
@pytest.mark.parametrize(
    ("text", "code"),
    [
        (ROUNDS, 0),
        (COUNTS, 0),
        (VALUE, 0),
        (ROUNDS.replace("units: 20000", "units: 50"), 2),
        (AGENTS, 0),
        (AGENTS.replace("bc, rllib_discrete_cql", "bc, sarsa"), 2),
        (AGENTS.replace("bc, rllib_discrete_cql", "rllib_iql, discrete_cql"), 2),
        (AGENTS.replace("threshold: 0.5", "threshold: 2.0"), 2),
        (AGENTS.replace("threshold: 0.5", "threshold: low"), 2),
        (AGENTS.replace("threshold: 0.5", "beta: 0.5"), 2),
        (AGENTS.replace("discrete_bcq: {", "rllib_discrete_bcq: {"), 2),
        (AGENTS.replace("epsilon: 4", "epsilon: null"), 4),
        (COUNTS.replace("1.0e-6", "1.0e-2"), 4),
        (FRAGMENTS, 0),
        (FRAGMENTS.replace("privorl_j", "privorl_j_unet"), 0),
        (FRAGMENTS.replace("width: 64", "width: 63"), 2),
        (FRAGMENTS.replace("unit: trajectory", "unit: transition"), 2),
        (VALUE.replace("trainer: bc", "trainer: sarsa"), 2),
        (VALUE.replace("trainer: bc", "trainer: bc, options: {beta: 1}"), 2),
    ],
)
def test_plans_and_their_refusals_load_no_torch(tmp_path, verb, text, code):
    config = tmp_path / "run.yaml"
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text("observation: {low: [0, 0], high: [1, 1]}\nreward: [0, 1]\n")
    config.write_text(text.replace("BOUNDS", str(bounds)))
    check_light([*verb.split(), str(config)], code)


@PLANNING
@pytest.mark.parametrize(
    ("name", "override", "code"),
    [
        ("apvi_icu_sepsis", None, 0),
        ("vapvi_linear_mdp", None, 0),
        ("primorl_pendulum", None, 0),
        ("mopo_pendulum", None, 0),
        ("expert_hiv", None, 0),
        ("primorl_pendulum", "training.local.weight_decay=1e6", 2),
        ("mopo_pendulum", "training.policy.action_repeat=2", 2),
        ("expert_hiv", "model.options={beta: 1}", 2),
        ("expert_hiv", "model.options={alpha: -1}", 2),
    ],
)
def test_plans_of_policies_and_their_refusals_load_no_torch(verb, name, override, code):
    options = [] if override is None else ["-o", override]
    check_light([*verb.split(), str(TUNED / f"{name}.yaml"), *options], code)


def test_start_is_quick():
    script = (
        "import resource, sys\n"
        "from distributed_privrl.cli import main\n"
        "sys.argv = ['privrl', '--help']\n"
        "try:\n"
        "    main()\n"
        "except SystemExit:\n"
        "    used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "    print(used.ru_utime + used.ru_stime, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert float(done.stderr) < 1.0  # CPU seconds; .13 measured


def test_debug_may_stand_anywhere(workplace, monkeypatch):
    from distributed_privrl.experiments import registry

    def fail(*_):
        raise RuntimeError("broken")

    monkeypatch.setattr(registry, "load_config", fail)
    for args in (("--debug", "plan", "a.yaml"), ("plan", "a.yaml", "--debug")):
        result = workplace.privrl(*args)
        assert result.exit_code == 1
        assert "Traceback" in result.stderr
        assert result.stderr.splitlines()[-1].startswith("unexpected error: RuntimeError: broken")
    assert "Traceback" not in workplace.privrl("plan", "a.yaml").stderr
    # after --, it is an argument like any other
    assert "Traceback" not in workplace.privrl("plan", "--", "--debug").stderr


def test_the_shell_completes_verbs_and_options():
    def completed(words: str) -> set[str]:
        about = {"_PRIVRL_COMPLETE": "complete_bash", "COMP_WORDS": words}
        place = str(len(words.split(" ")) - 1)
        code = "from distributed_privrl.cli.app import app; app(prog_name='privrl')"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, **about, "COMP_CWORD": place},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    assert completed("privrl re") == {"remove", "report", "rehearse"}
    assert "--sign" in completed("privrl run --")
