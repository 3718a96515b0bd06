import shlex
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
import yaml
from typer.testing import CliRunner, Result

from distributed_privrl.cli.app import app

CONFIG = {
    "method": "privorl_n",
    "data": {
        "sensitive": "clinic/stays-v0",
        "public": ["clinic/public-v0"],
        "unit": "transition",
        "units": 400,
    },
    "privacy": {"epsilon": 8, "delta": 1e-5},
    "model": {"width": 8, "depth": 1},
    "training": {
        "rounds": 3,
        "spare": 1,
        "expected_batch_size": 16,
        "pretraining": {"steps": 2, "batch_size": 16},
        "sampling": {"steps": 3, "chunk_rows": 32},
    },
    "output": {"dataset": "clinic/private-v0", "size": 40},
    "runtime": {"workers": 1, "executor": "local"},
}


@dataclass(frozen=True)
class Workplace:
    """A folder with datasets, a ledger and a configuration of its own."""

    folder: Path

    @property
    def ledger(self) -> str:
        return f"sqlite:///{self.folder / 'ledger.sqlite'}"

    @property
    def datasets(self) -> Path:
        return self.folder / "datasets"

    @property
    def config(self) -> Path:
        return self.folder / "stays.yaml"

    def write_config(self, **sections: object) -> None:
        self.config.write_text(yaml.safe_dump({**CONFIG, **sections}))

    def privrl(self, *args: object) -> Result:
        environment = {"MINARI_DATASETS_PATH": str(self.datasets), "PRIVRL_LEDGER": self.ledger}
        words = [str(word) for word in args]
        return CliRunner().invoke(app, words, env=environment, prog_name="privrl")


@dataclass(frozen=True)
class FinishedRun:
    """A workplace where a run has ended well, and what was said on the way."""

    workplace: Workplace
    out: Path
    without_budget: Result
    with_budget: Result
    resumed: Result


@pytest.fixture
def workplace(tmp_path):
    place = Workplace(tmp_path)
    place.write_config()
    return place


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    place = Workplace(tmp_path_factory.mktemp("finished"))
    place.write_config()
    for recipe, dataset, seed in (
        ("maze2d-umaze", "clinic/stays-v0", 1),
        ("maze2d-medium", "clinic/public-v0", 2),
    ):
        made = place.privrl("collect", recipe, "--dataset", dataset, "--steps", 400, "--seed", seed)
        assert made.exit_code == 0, made.output
    out = place.folder / "run"
    without_budget = place.privrl("run", place.config, "--out", out)
    command = without_budget.stderr.split("`")[1]
    with_budget = place.privrl(*shlex.split(command)[1:])
    nothing = place.privrl("run", place.config, "--out", out, "--resume")
    assert "holds no run to go on with" in nothing.stderr  # a typo in --out starts no new run
    resumed = place.privrl("run", place.config, "--out", out)
    return FinishedRun(place, out, without_budget, with_budget, resumed)


@pytest.fixture
def understands():
    """Say whether a command line has verbs, arguments and options that exist; runs nothing."""
    root = typer.main.get_command(app)
    _replace_callbacks(root)

    def check(line: str) -> bool:
        words = shlex.split(line.split(" > ")[0])
        assert words[0] == "privrl"
        with pytest.raises(SystemExit) as ended:
            root.main(words[1:], prog_name="privrl")
        return ended.value.code == 0

    return check


def _replace_callbacks(command) -> None:
    command.callback = lambda **_: None
    for inner in getattr(command, "commands", {}).values():
        _replace_callbacks(inner)
