"""What a worker counts: rows in cells, each with the weight of its unit."""

import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.marginals import counting
from distributed_privrl.marginals.counting import (
    CountSpec,
    CountWorker,
    StoredSteps,
    StoredTransitions,
)
from distributed_privrl.marginals.tables import counts_of
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.marginals.rows import (
    ACTION,
    STATE,
    Listed,
    column_counts,
    few_columns,
    group,
    joint_counts,
    steps_of,
)

HALF, THIRD = UNIT_WEIGHT // 2, UNIT_WEIGHT // 3
ROWS = [(0.0, 0, 0.0, 1.0, False), (3.0, 1, 1.0, 3.0, True), (3.0, 1, 0.0, 0.0, False)]


def many(count: int, seed: int, units: int) -> Transitions:
    """Return rows of units that have different numbers of them."""
    source = np.random.default_rng(seed)
    rows = zip(
        source.integers(0, 4, count).tolist(),
        source.integers(0, 2, count).tolist(),
        source.integers(0, 2, count).tolist(),
        source.integers(0, 4, count).tolist(),
        (source.random(count) < 0.2).tolist(),
        strict=True,
    )
    owners = np.minimum(source.geometric(3 / units, count), units).tolist()
    return steps_of(list(rows), owners)


def test_columns_by_hand() -> None:
    counts = column_counts(steps_of(ROWS, [7, 7, 9]), few_columns())
    assert counts.dtype == np.int64
    state, action, reward, end = np.split(counts, [4, 6, 8])
    assert state.tolist() == [HALF, 0, 0, HALF + UNIT_WEIGHT]
    assert action.tolist() == [HALF, HALF + UNIT_WEIGHT]
    assert reward.tolist() == [HALF + UNIT_WEIGHT, HALF]
    assert end.tolist() == [HALF + UNIT_WEIGHT, HALF]


def test_joint_counts_by_hand() -> None:
    counts = joint_counts(steps_of(ROWS, [7, 7, 9]), few_columns(), (0, 1, 2))
    expected = np.zeros((4, 2, 2), np.int64)
    expected[0, 0, 0], expected[3, 1, 1], expected[3, 1, 0] = HALF, HALF, UNIT_WEIGHT
    np.testing.assert_array_equal(counts, expected)


def test_bins_join_cells() -> None:
    workers = group(steps_of(ROWS, [7, 7, 9]), few_columns())
    bins = [np.array([0, 0, 1, 1]), np.arange(2), np.arange(2), np.arange(4), np.arange(2)]
    for _ in range(2):
        ((table,),) = workers.call("tables", {"bins": bins, "cliques": [(0, 1)]})
        assert table.tolist() == [[HALF, 0], [0, HALF + UNIT_WEIGHT]]
        bins[1] = np.zeros(2, np.int64)
        ((table,),) = workers.call("tables", {"bins": bins, "cliques": [(0, 1)]})
        assert table.tolist() == [[HALF], [HALF + UNIT_WEIGHT]]
        bins[1] = np.arange(2)


def test_what_was_counted_is_not_counted_again_and_cannot_be_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Three steps ask for much the same; what they are told stays with the worker."""
    counted: list[tuple[int, ...]] = []

    def watched(bins: Any, clique: tuple[int, ...], *others: Any) -> Any:
        counted.append(clique)
        return counts_of(bins, clique, *others)

    monkeypatch.setattr(counting, "counts_of", watched)
    workers = group(steps_of(ROWS, [7, 7, 9]), few_columns())
    bins = [np.arange(size) for size in few_columns().sizes]
    asked = [[(0, 1), (0, 2)], [(0, 2), (1, 2)], [(0, 1), (0, 2), (1, 2)]]
    answers = [workers.call("tables", {"bins": bins, "cliques": one})[0] for one in asked]
    assert counted == [(0, 1), (0, 2), (1, 2)]
    for one, other in zip(answers[2], [*answers[0], answers[1][1]], strict=True):
        np.testing.assert_array_equal(one, other)
    with pytest.raises(ValueError, match="read-only"):
        answers[0][0][:] = 0


@pytest.mark.parametrize(
    ("rows", "cap", "each"),
    [(1, 1, UNIT_WEIGHT), (1, 3, THIRD), (3, 3, THIRD), (3, 1, THIRD), (5, 3, UNIT_WEIGHT // 5)],
)
def test_a_rows_weight_is_the_units_by_its_rows_or_the_cap(rows: int, cap: int, each: int) -> None:
    data = steps_of([ROWS[1]] * rows, [4] * rows)
    assert column_counts(data, few_columns(), cap=cap)[3] == rows * each


def test_a_malformed_row_weighs_nothing_and_still_counts_among_its_units_rows() -> None:
    bad = (np.nan, 0, 0.0, 1.0, False)
    counts = column_counts(steps_of([ROWS[0], bad, ROWS[0]], [4, 4, 5]), few_columns())
    assert counts[:4].tolist() == [HALF + UNIT_WEIGHT, 0, 0, 0]
    alone = column_counts(steps_of([bad]), few_columns())
    np.testing.assert_array_equal(alone, column_counts(None, few_columns()))
    assert not alone.any()


def test_only_a_units_first_rows_count() -> None:
    data = steps_of([ROWS[0], ROWS[1], ROWS[2], ROWS[1]], [4, 5, 4, 4])
    assert column_counts(data, few_columns(), most=1)[:4].tolist() == [
        UNIT_WEIGHT,
        0,
        0,
        UNIT_WEIGHT,
    ]
    assert column_counts(data, few_columns(), most=2)[:4].tolist() == [
        HALF,
        0,
        0,
        HALF + UNIT_WEIGHT,
    ]


@pytest.mark.parametrize("settings", [{}, {"cap": 3}, {"most": 2}, {"chunk": 7}])
def test_sums_are_the_same_integers_for_any_number_of_workers_and_any_order_of_units(
    settings: dict[str, Any],
) -> None:
    data, columns = many(400, seed=1, units=60), few_columns()
    whole, table = (
        column_counts(data, columns, **settings),
        joint_counts(data, columns, (0, 1, 3), **settings),
    )
    shuffled = data.select(np.random.default_rng(0).permutation(400))
    by_unit = data.select(np.argsort(data.unit_ids, kind="stable"))
    for workers in (2, 4):
        np.testing.assert_array_equal(
            column_counts(data, columns, workers=workers, **settings), whole
        )
        np.testing.assert_array_equal(
            joint_counts(data, columns, (0, 1, 3), workers=workers, **settings), table
        )
    np.testing.assert_array_equal(column_counts(by_unit, columns, **settings), whole)
    if "most" not in settings:
        np.testing.assert_array_equal(column_counts(shuffled, columns, **settings), whole)
    assert 0 < whole[:4].sum() <= 60 * UNIT_WEIGHT


def test_stored_rows_are_read_by_shard_and_unit(tmp_path: Path) -> None:
    store, data = DatasetStore(tmp_path), many(200, seed=2, units=30)
    store.write_transitions(
        "intake/few-v0",
        data,
        layout="transitions",
        observation_space=STATE,
        action_space=ACTION,
        unit_column="patient",
    )
    columns = few_columns()
    expected = column_counts(data, columns, cap=2)
    for count in (1, 3):
        total = np.zeros_like(expected)
        for ref in shard_refs(store, "intake/few-v0", count=count, unit="patient"):
            source = StoredTransitions(ref=ref)
            assert pickle.loads(pickle.dumps(source)) == source
            spec = CountSpec(source=source, columns=columns, rows_per_unit=2)
            total += CountWorker(spec).columns()
        np.testing.assert_array_equal(total, expected)


def test_steps_of_trajectories_know_their_time_and_the_action_before(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    data = Trajectories(
        observations=np.arange(8, dtype=np.float32)[:, None] % 4,
        actions=np.array([1, 0, 1, 1, 0]),
        rewards=np.zeros(5),
        terminated=np.array([False, False, True, False, False]),
        truncated=np.zeros(5, bool),
        offsets=np.array([0, 3, 5, 5]),
        unit_ids=np.array([8, 8, 9]),
    )
    store.write_trajectories(
        "intake/stays-v0", data, observation_space=STATE, action_space=ACTION, unit_column="patient"
    )
    (ref,) = shard_refs(store, "intake/stays-v0", count=1, unit="patient")
    ((steps, units),) = StoredSteps(ref=ref, max_trajectories_per_unit=2)()
    assert units.tolist() == [8] * 5
    assert steps.times is not None
    assert steps.times.tolist() == [0, 1, 2, 0, 1]
    assert steps.begins is not None
    assert steps.begins.tolist() == [True, False, False, True, False]
    assert steps.previous is not None
    assert steps.previous[[1, 2, 4]].tolist() == [1, 0, 1]
    assert steps.transitions.terminated.tolist() == [False, False, True, False, False]
    assert steps.transitions.truncated.tolist() == [False] * 4 + [True]
    ((fewer, _),) = StoredSteps(ref=ref, max_trajectories_per_unit=1)()
    assert len(fewer.transitions) == 3


@pytest.mark.parametrize("cap", [0, UNIT_WEIGHT + 1])
def test_caps_that_leave_no_weight_are_refused(cap: int) -> None:
    with pytest.raises(ConfigError, match="rows_per_unit must lie in"):
        CountSpec(source=Listed(None), columns=few_columns(), rows_per_unit=cap)


def test_rows_beyond_the_cap_need_no_memory(tmp_path: Path) -> None:
    """Whether a worker runs out of memory would tell of one person's rows."""
    store, others, theirs = DatasetStore(tmp_path), 1000, 400_000
    owners = np.minimum(np.arange(others + theirs), others)
    rows = steps_of([ROWS[0]], [0]).select(np.zeros(len(owners), np.int64))
    rows = replace(rows, unit_ids=owners.astype(np.uint64))
    settings = {"observation_space": STATE, "action_space": ACTION, "unit_column": "patient"}
    store.write_transitions("ward/rows-v0", rows, layout="transitions", **settings)
    del rows
    (ref,) = shard_refs(store, "ward/rows-v0", count=1, unit="patient")
    spec = CountSpec(
        source=StoredTransitions(ref=ref),
        columns=few_columns(),
        rows_per_unit=2,
        max_rows_per_unit=10,
    )
    tracemalloc.start()
    worker = CountWorker(spec)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    first = worker.columns()[0]
    assert first == others * HALF + 10 * (UNIT_WEIGHT // 10)
    assert peak < 50 * theirs, "bytes of each row: more are held than those of a chunk"
