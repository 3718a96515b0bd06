"""What runs in a trial of a sweep takes the CPUs that were reserved for it, and no others."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor
from distributed_privrl.experiments.sweeps.config import load_sweep
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory, results_of
from distributed_privrl.experiments.sweeps.preparing import prepared_jobs
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.runtime.session import room
from distributed_privrl.runtime.tuning import bundles_of, run_jobs
from tests.runtime.probe import Probe
from tests.worlds import grid, mazes, sweeps
from tests.worlds.world import World

RAY: dict[str, Any] = {"executor": "ray", "workers": 2, "cpus_per_worker": 0.65}
"""A trial that takes 1.95 CPUs of 2: for itself, and for two workers."""


class Trial:
    """Stands for the process of a trial."""

    def room(self) -> dict[str, float]:
        return room()

    def start(self, workers: int) -> list[int]:
        executor = RayExecutor(workers=workers, cpus_per_worker=0.5)
        try:
            group = executor.start(Probe, list(range(workers)))
            return group.call("pid")
        finally:
            executor.close()


@pytest.fixture
def trial(ray_executor: Executor) -> Iterator[Any]:
    """A trial's process with half a CPU, and two more halves for its workers."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    group = placement_group([{"CPU": 0.5}] * 3)
    ray.get(group.ready())
    strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
    actor = ray.remote(num_cpus=0.5)(Trial).options(scheduling_strategy=strategy).remote()
    yield actor
    ray.kill(actor)
    remove_placement_group(group)


def test_an_executor_in_a_trial_has_the_trials_bundles(trial: Any) -> None:
    import ray

    assert ray.get(trial.room.remote()) == {"CPU": 1.0}
    assert room()["CPU"] == ray.cluster_resources()["CPU"]  # out of any trial
    assert len(set(ray.get(trial.start.remote(2)))) == 2
    with pytest.raises(ConfigError, match=r"3 workers need 1\.5 CPUs but Ray has 1"):
        ray.get(trial.start.remote(3))


def test_bundles_are_for_the_trial_and_its_workers() -> None:
    assert bundles_of(RuntimeConfig(executor="local", workers=3)) == [{"CPU": 1.0}]
    gpus = RuntimeConfig(**{**RAY, "gpus_per_worker": 0.5})
    assert bundles_of(gpus) == [{"CPU": 0.65}, *[{"CPU": 0.65, "GPU": 0.5}] * 2]


def run_one(world: World, values: dict[str, Any]) -> list[Any]:
    """Run a sweep of one trial that the sensitive dataset pays for; return what came of it."""
    path = world.folder / "sweep.yaml"
    search = {"privacy.epsilon": {"grid": [1]}}
    path.write_text(yaml.safe_dump({**values, "search": search}))
    directory = SweepDirectory(world.folder / "out")
    jobs = prepared_jobs(
        load_sweep(path), directory, store=world.store, ledger=world.url, resume=False
    )
    storage = directory.scheduler(public=False)
    options: dict[str, Any] = {"public": False, "concurrent": None, "retries": 0}
    assert not run_jobs(jobs, storage=storage, ledger=world.url, **options)
    return results_of(jobs)


def test_a_trials_workers_run_where_all_cpus_are_reserved(
    tmp_path: Path, ray_executor: Executor
) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=1)
    found = run_one(world, sweeps.values(sweeps.COMPOSE, runtime=RAY))
    assert [one.failed for one in found] == [""]


def test_a_trial_that_fits_nowhere_is_refused(tmp_path: Path, ray_executor: Executor) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=1)
    with pytest.raises(ConfigError, match="a trial needs 9 CPUs but Ray has"):
        run_one(world, sweeps.values(sweeps.COMPOSE, runtime={"executor": "ray", "workers": 8}))


@pytest.mark.slow
def test_rllib_trains_in_a_trial_that_has_all_cpus(tmp_path: Path, ray_executor: Executor) -> None:
    master = mazes.maze_store(tmp_path / "master", declared=True)
    world = mazes.Mazes(tmp_path, master).budget(epsilon=1)
    agents = {"trainers": ["rllib_iql"], "steps": 10, "episodes": 1}
    values = mazes.ar_values(evaluation=agents, runtime__workers=1)
    score = {"by": "agents"}
    found = run_one(world, {**values, "selection": {"pays": "compose", "score": score}})
    assert [one.failed for one in found] == [""]
    assert found[0].score is not None
