"""A run's folder: what a run that is resumed goes on with."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import UNFINISHED, write_atomically
from distributed_privrl.experiments.directory import RunDirectory
from tests.worlds.mazes import config


@pytest.fixture
def begun(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(
        tmp_path / "run", config(), resume=False, noise_source="float64_lattice"
    )


def rewrite(directory: RunDirectory, change: Callable[[Any], None]) -> None:
    """Write config.yaml as an earlier version of the package would have."""
    values = yaml.safe_load(directory.config_path.read_text())
    change(values)
    directory.config_path.write_text(yaml.safe_dump(values))


def test_keys_and_defaults_of_a_later_version_do_not_count(begun: RunDirectory) -> None:
    def earlier(values: Any) -> None:
        del values["model"]["time_width"]
        del values["training"]["optimiser"]
        values["training"]["curiosity_rate"] = 0.125
        values["training"]["sampling"]["steps"] = 4

    unset = config(model={"width": 16, "depth": 1})
    rewrite(begun, earlier)
    went_on = begun.resumed(unset)
    assert went_on.training.curiosity_rate == 0.125  # the resolved file wins over a new default
    assert went_on.model.time_width == unset.model.time_width
    assert went_on.training.optimiser == unset.training.optimiser
    assert begun.resumed(went_on) == went_on
    RunDirectory.create(begun.path, unset, resume=True, noise_source="float64_lattice")


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"privacy__epsilon": 6.0}, "privacy.epsilon is 5.0 there and 6.0 now"),
        ({"output__size": 151}, "output.size is 150 there and 151 now"),
        ({"model__width": 32, "model__depth": 2}, "width is 16 there and 32 now; model.depth is 1"),
        ({"data__units": {"epsilon": 0.5}}, "data.units is 3000 there and {'epsilon': 0.5} now"),
        ({"seed": 3}, "seed is 0 there and 3 now"),
    ],
)
def test_keys_that_differ_are_named(
    begun: RunDirectory, changes: dict[str, Any], named: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        begun.resumed(config(**changes))
    assert named in str(caught.value)


def test_a_key_that_is_set_now_and_was_unknown_then_differs(begun: RunDirectory) -> None:
    rewrite(begun, lambda values: values["model"].pop("time_width"))
    with pytest.raises(ConfigError, match=r"model\.time_width is not set there and 8"):
        begun.resumed(config())


def test_runtime_and_evaluation_are_those_of_now(begun: RunDirectory) -> None:
    changed = config(
        runtime={"workers": 5, "executor": "local"}, evaluation={"trainers": ["bc"], "seeds": 2}
    )
    went_on = begun.resumed(changed)
    assert went_on.runtime == changed.runtime
    assert went_on.evaluation == changed.evaluation


def test_a_folder_without_a_configuration_has_begun_no_run(tmp_path: Path) -> None:
    """A kill between run.json and config.yaml left what neither run nor --resume took."""
    half = RunDirectory(tmp_path / "run")
    write_atomically(half.facts_path, "{}")
    with pytest.raises(ConfigError, match="or begin one without --resume"):
        RunDirectory.create(half.path, config(), resume=True, noise_source="float64_lattice")
    begun = RunDirectory.create(half.path, config(), resume=False, noise_source="float64_lattice")
    assert begun.run_id.startswith("run-")
    assert begun.config_path.exists()


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path: Path) -> None:
    half = RunDirectory(tmp_path / "run")
    write_atomically(half.facts_path, "{}")
    write_atomically(half.checkpoint / "rounds.safetensors", "parameters")
    with pytest.raises(ConfigError, match="is not empty and holds no run"):
        RunDirectory.create(half.path, config(), resume=False, noise_source="float64_lattice")
    assert (half.checkpoint / "rounds.safetensors").exists()


def test_what_dead_processes_left_in_a_run_goes_with_its_resume(begun: RunDirectory) -> None:
    for folder in (begun.path, begun.checkpoint, begun.make_private()):
        (folder / f"{UNFINISHED}0").mkdir()
    RunDirectory.create(begun.path, config(), resume=True, noise_source="float64_lattice")
    assert [path for path in begun.path.rglob("*") if path.name.startswith(UNFINISHED)] == []
    begun.discard()
    assert not begun.path.exists()
