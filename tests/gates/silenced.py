"""A gate on what sensitive rows change beside the sums of private rounds: nothing.

Noise and coins follow from a key, and workers add nothing to a sum. Then all that rows may change
is gone, and a run over other rows is the same run, to the last bit and in the same order: the
parameters that it starts from, those that it learns, and each row that it releases.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box
from numpy.typing import NDArray
from safetensors.numpy import load_file

from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.methods.primorl.config import PrimorlConfig
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import LocalUpdateWorker
from tests.worlds import mazes, swings, walks
from tests.worlds.overrides import parsed
from tests.worlds.world import World

KEY = 7


@dataclass(frozen=True, kw_only=True)
class Silenced:
    """A method's run, whose workers add nothing.

    Args:
        dataset: the sensitive one.
        make: writes the datasets into a new store.
        config: of the run in a folder; its units, and how many they are, are declared.
    """

    dataset: str
    make: Callable[[Path], DatasetStore]
    config: Callable[[Path], RunConfig]


def _swings(folder: Path) -> RunConfig:
    (folder / "bounds.yaml").write_text(swings.BOUNDS)
    policy = {"steps": 4, "hidden": [8], "batch_size": 16, "rollouts": 4, "starts": 2}
    bounds = str(folder / "bounds.yaml")
    values = swings.config_values(data__bounds=bounds, training__policy=policy)
    return parsed(values, PrimorlConfig)


METHODS: dict[str, Silenced] = {
    "privorl_n": Silenced(
        dataset=mazes.SENSITIVE, make=mazes.maze_store, config=lambda _: mazes.config()
    ),
    "privorl_j": Silenced(
        dataset=walks.SENSITIVE, make=walks.walk_store, config=lambda _: walks.config()
    ),
    "primorl": Silenced(dataset=swings.DATASET, make=swings.swing_store, config=_swings),
}


def other_rows(master: DatasetStore, dataset: str, root: Path) -> DatasetStore:
    """Return a copy of a store in which a dataset has other rows, and the same public facts.

    Its last trajectory is gone, and the first is mirrored and visits the corner of the space: one
    row, trajectory, mean and extreme are other ones.
    """
    store, info = DatasetStore(root), master.info(dataset)
    for other in master.ids():
        if other != dataset:
            _copy(master, other, store, master.read_trajectories(other))
    rows = master.read_trajectories(dataset)
    left = rows.select(np.arange(len(rows.unit_ids) - 1))
    assert isinstance(info.observation_space, Box)
    high = np.asarray(info.observation_space.high, np.float32)
    observations = left.observations.copy()
    first = slice(0, int(left.lengths[0]) + 1)
    observations[first] *= -1
    observations[1] = np.where(np.isfinite(high), high, 10 * np.abs(observations).max(axis=0))
    _copy(master, dataset, store, replace(left, observations=observations))
    return store


def _copy(master: DatasetStore, dataset: str, store: DatasetStore, rows: Trajectories) -> None:
    info = master.info(dataset)
    store.write_trajectories(
        dataset,
        rows,
        layout="packed" if info.layout == "packed" else "episodes",
        observation_space=info.observation_space,
        action_space=info.action_space,
        environment=info.environment,
        unit_column=info.unit_column,
    )


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run with silent workers did.

    Args:
        start: the parameters that it starts from.
        learned: tensors of the checkpoint of its rounds, by name.
        released: columns of the rows that it released, in order, or a policy's tensors, by name.
        said: what its progress said.
    """

    start: NDArray[np.float32]
    learned: dict[str, NDArray[Any]]
    released: dict[str, NDArray[Any]]
    said: list[tuple[Any, ...]]


def silent_run(method: str, folder: Path, master: DatasetStore) -> Outcome:
    """Run a method over ``master`` with workers that add nothing."""
    starts: list[NDArray[np.float32]] = []
    said: list[tuple[Any, ...]] = []
    compute, serve = LocalUpdateWorker.clipped_sum, ParameterServer.__init__

    def silent(self: LocalUpdateWorker, **keywords: Any) -> Any:
        return np.zeros_like(compute(self, **keywords))

    def served(self: ParameterServer, spec: ServerSpec) -> None:
        tensors, _ = load_checkpoint(spec.initial, run_id=spec.run_id, stage="pretraining")
        starts.append(tensors["parameters"].numpy())
        serve(self, spec)

    config = METHODS[method].config(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalUpdateWorker, "clipped_sum", silent)
        patch.setattr(ParameterServer, "__init__", served)
        world = World(folder, master).afford(config)
        result = world.start(
            config,
            insecure_key=KEY,
            reports=False,
            progress=lambda *facts: said.append(facts),
        )
    (start,) = starts
    (path,) = (folder / "run").rglob("rounds.safetensors")
    tensors, _ = load_checkpoint(path, run_id=result.directory.run_id, stage="rounds")
    return Outcome(
        start=start,
        learned={name: tensor.numpy() for name, tensor in tensors.items()},
        released=_columns(world, result),
        said=said,
    )


def _columns(world: World, result: RunResult) -> dict[str, NDArray[Any]]:
    if Path(result.released).is_file():
        return dict(load_file(result.released))
    rows = world.store.read_transitions(str(result.released), unit="transition")
    names = ("observations", "actions", "rewards", "next_observations", "terminated")
    return {name: np.asarray(getattr(rows, name)) for name in names}


def gate_rows_change_sums_alone(one: Outcome, other: Outcome) -> None:
    """Runs over two datasets of the same public facts differ in nothing but the workers' sums.

    Args:
        one: a run's outcome.
        other: that of the same run over `other_rows`.
    """
    assert np.array_equal(one.start, other.start), "rows change the parameters at the start"
    _assert_same(one.learned, other.learned, "of what is learned rows change {}")
    _assert_same(one.released, other.released, "of the release rows change {}, or their order")
    assert one.said == other.said, "rows change what is said"


def _assert_same(one: dict[str, NDArray[Any]], other: dict[str, NDArray[Any]], what: str) -> None:
    assert one.keys() == other.keys(), what.format(sorted(one.keys() ^ other.keys()))
    changed = [name for name, value in one.items() if not np.array_equal(value, other[name])]
    assert not changed, what.format(", ".join(changed))
