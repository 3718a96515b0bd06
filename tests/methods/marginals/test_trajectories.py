"""Whole trajectories from marginals, through the whole program."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.metadata import DRIFT_KEY
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.registry import method_named
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.experiments.trajectory_reports import trajectory_sections
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.attack import steps_of
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker, StoredSteps
from distributed_privrl.marginals.model import estimated
from distributed_privrl.marginals.steps import time_groups
from distributed_privrl.methods.marginals.config import MarginalsJConfig
from distributed_privrl.methods.marginals.trajectories import TrajectoryMarginalsMethod
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.stages.context import RunContext
from tests.marginals.programs import remembered
from tests.worlds import walks
from tests.worlds.opened import opened
from tests.worlds.world import World


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("walks")
    master = walks.walk_store(folder / "master", layout="packed")
    return World(folder, master, walks.BOUNDS)


@pytest.fixture(scope="module")
def config(place: World) -> MarginalsJConfig:
    """Return a run without public rows, of whose counts an estimate takes no time to compile."""
    alone: dict[str, Any] = {"data__public": [], "data__bounds": str(place.bounds)}
    return walks.marginals_config(output__size=300, training__steps=1, **alone)


@pytest.fixture(scope="module", autouse=True)
def estimated_once() -> Iterator[None]:
    """The audit asks the model that the run drew from: it is not estimated again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(belief, "estimated", remembered(estimated))
        yield


@pytest.fixture(scope="module")
def finished(place: World, config: MarginalsJConfig) -> tuple[RunResult, RunContext]:
    with pytest.MonkeyPatch.context() as patch:
        return place.finish(config, patch)


@pytest.fixture
def result(finished: tuple[RunResult, RunContext]) -> RunResult:
    return finished[0]


def released(place: World, result: RunResult) -> Trajectories:
    chunks = place.store.iter_trajectories(str(result.released), unit="trajectory")
    return Trajectories.concatenate(list(chunks))


def test_a_run_is_certified_and_its_trajectories_are_whole(place: World, result: RunResult) -> None:
    verify_certificate(
        result.directory.certificate, ledger=place.ledger, outputs_root=place.store.root
    )
    kinds = [event.kind for stage in result.certificate.stages for event in stage.events]
    assert set(kinds) == {"discrete_gaussian", "bounded_range"}
    drawn = released(place, result)
    assert len(drawn) == 300
    assert drawn.lengths.max() <= 24
    last = drawn.offsets[1:] - 1
    assert (drawn.terminated | drawn.truncated)[last].all()


def test_a_release_is_stored_as_the_sensitive_set_is(place: World, result: RunResult) -> None:
    """Which its owner declared: no row decides it."""
    sensitive = place.store.info(walks.SENSITIVE)
    assert place.store.info(str(result.released)).layout == sensitive.layout == "packed"


def test_a_release_says_how_far_its_steps_drift(place: World, result: RunResult) -> None:
    drift = opened(place.store.info(str(result.released)).metadata)[DRIFT_KEY]
    assert drift["trajectories"] == 300
    assert {"observation_0", "action_0"} <= set(drift["columns"])
    (section,) = trajectory_sections(place.store, Sourced.private(str(result.released)), {}, None)
    values = {one.name: one.value for one in section.metrics}
    worst = max(drift["columns"].values(), key=lambda one: one["missed"] - one["by_chance"])
    assert values["largest drift"] == worst["missed"]
    lengths = released(place, result).lengths
    assert values["mean length of all, synthetic"] == pytest.approx(lengths.mean())


def test_lengths_are_about_those_of_the_walks(place: World, result: RunResult) -> None:
    real = walks.walks(200, 1).lengths.mean()
    assert released(place, result).lengths.mean() == pytest.approx(real, rel=0.25)


def columns_of(place: World, config: MarginalsJConfig) -> TableColumns:
    return TrajectoryMarginalsMethod(config).columns(place.context(), None)


def test_a_stationary_model_tells_the_first_step_alone_and_counts_no_lengths(
    place: World, config: MarginalsJConfig
) -> None:
    model = config.model.model_copy(update={"stationary": True})
    for changed, kinds, lengths in (
        (config, time_groups(24), 24),
        (config.model_copy(update={"model": model}), 2, 0),
    ):
        columns = columns_of(place, changed)
        (time,) = columns.of("time")
        assert (columns[time].categories, columns.lengths) == (kinds, lengths)


def test_a_unit_of_many_trajectories_weighs_one_in_the_count_of_lengths(
    tmp_path: Path, place: World, config: MarginalsJConfig
) -> None:
    """And so do two, however they are cut: 30 trajectories of one unit, one of another."""
    store, many = walks.walk_store(tmp_path, public=1), walks.walks(31, 5)
    units = np.append(np.zeros(30, np.uint64), np.uint64(1))
    store.write_trajectories(
        "test/wards-v0",
        Trajectories(**{**vars(many), "unit_ids": units}),
        unit_column="ward",
        **walks.SPACES,
    )
    (ref,) = shard_refs(store, "test/wards-v0", count=1, unit="ward")
    columns = columns_of(place, config)
    for cap in (1, 30, 100):
        spec = CountSpec(
            source=StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT),
            columns=columns,
            rows_per_unit=1,
            trajectories_per_unit=cap,
        )
        lengths = CountWorker(spec).columns()[-columns.lengths :]
        each = UNIT_WEIGHT // max(30, cap)
        assert lengths.sum() == 30 * each + UNIT_WEIGHT // max(1, cap)
        assert lengths.sum() <= 2 * UNIT_WEIGHT


def test_steps_are_found_again_in_the_rows_of_an_audit() -> None:
    real = walks.walks(20, 3)
    steps = steps_of(real.transitions("trajectory"))
    starts = np.repeat(real.offsets[:-1], real.lengths)
    assert steps.times is not None
    assert (steps.times == np.arange(len(steps.transitions)) - starts).all()
    ended = steps.transitions.terminated | steps.transitions.truncated
    assert (np.flatnonzero(ended) == real.offsets[1:] - 1).all()


@pytest.mark.parametrize("count", [0, 1])
def test_a_single_row_is_a_trajectory_and_no_row_is_none(count: int) -> None:
    """Also where an observation is a category and not a row of numbers."""
    rows = walks.walks(20, 3).transitions("trajectory").select(slice(0, count))
    flat = replace(
        rows,
        observations=rows.observations[:, 0].astype(np.int64),
        next_observations=rows.next_observations[:, 0].astype(np.int64),
    )
    for one in (rows, flat):
        steps = steps_of(one)
        assert steps.times is not None
        assert steps.times.tolist() == [0] * count
        ended = steps.transitions.terminated | steps.transitions.truncated
        assert ended.tolist() == [True] * count


def test_an_audit_s_losses_are_finite_for_proper_rows(
    finished: tuple[RunResult, RunContext], config: MarginalsJConfig
) -> None:
    attack = method_named("marginals_j").open_attack(config, finished[1])
    assert attack is not None
    rows = walks.walks(10, 9).transitions("trajectory")
    losses = attack.losses(rows)
    assert np.isfinite(losses).all()
    assert (losses > 0).all()
    for few in (1, 0):
        some = attack.losses(rows.select(slice(0, few)))
        assert some.shape == (few, 1)
        assert np.isfinite(some).all()


def test_what_makes_no_trajectories_is_refused() -> None:
    with pytest.raises(ConfigError, match="marginals_j releases trajectories"):
        TrajectoryMarginalsMethod(walks.marginals_config(data__unit="transition")).check_config()
    with pytest.raises(ConfigError, match="max_length is not set"):
        TrajectoryMarginalsMethod(walks.marginals_config(data__unit="patient")).check_config()
