"""What follows a last row of an imported table was in none: nothing is counted of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from distributed_privrl.core.config import validate
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.attack import steps_of
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import CountSpec, CountWorker, StoredSteps
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT

FIRST = [(0, 1.0), (0, 2.0), (0, 3.0)]
"""A unit and its ages: each a year more than the one before."""


def stored(tmp_path: Path, rows: list[tuple[int, float]], terminated: str = "last") -> DatasetStore:
    store = DatasetStore(tmp_path)
    frame = pd.DataFrame(rows, columns=["person", "age"]).assign(u="a", r=0.0)
    frame["t"] = np.arange(len(frame))
    frame.loc[0, "u"] = "b"
    text = (
        "columns: {observation: age, action: u, reward: r, trajectory: person, order: t,"
        f" unit: person, terminated: {terminated}}}\n"
        "kinds: {u: {type: category, values: [a, b]}}\n"
        "spaces: {observation: {type: box}}\n"
    )
    schema = validate(ImportSchema, yaml.safe_load(text), source="test")
    from_table(frame, schema, dataset="test/ages-v0", store=store)
    return store


def columns_of(store: DatasetStore) -> TableColumns:
    info = store.info("test/ages-v0")
    bounds = Bounds(
        low=np.array([0.0, 0.0]),
        high=np.array([9.0, 1.0]),
        step=np.ones(2),
        columns=("observation_0", "reward"),
    )
    steps = step_columns(
        info.observation_space, info.action_space, bounds, next_observation="difference", ends=3
    )
    found = trajectory_columns(steps, groups=4, previous=True)
    return replace(found, ends_unseen=info.last_rows_copied)


def counted(store: DatasetStore) -> tuple[TableColumns, np.ndarray, np.ndarray]:
    """Return the exact joint counts of changes and times, and of ages and ends."""
    columns = columns_of(store)
    (ref,) = shard_refs(store, "test/ages-v0", count=1, unit="person")
    source = StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT)
    worker = CountWorker(CountSpec(source=source, columns=columns, rows_per_unit=3))
    cliques = [columns.of("next_observation", "time"), columns.of("observation", "end")]
    bins = [np.arange(size) for size in columns.sizes]
    changes, ages = worker.tables(bins, cliques)
    return columns, changes, ages


@pytest.mark.parametrize(("terminated", "rows"), [("last", 3), ("never", 2)])
def test_what_follows_is_counted_where_it_was_seen_and_nowhere_else(
    tmp_path: Path, terminated: str, rows: int
) -> None:
    """Two steps of three ages lead to one that was seen, whether the third is a row or not."""
    columns, table, ages = counted(stored(tmp_path, FIRST, terminated))
    (after,) = columns.of("next_observation")
    one = columns[after].cells
    assert one is not None
    changes = table.sum(axis=1)
    assert changes[one.cells_of(np.array([1.0]))[0]] == 2 * (UNIT_WEIGHT // 3)
    assert changes.sum() == 2 * (UNIT_WEIGHT // 3)
    assert ages.sum() == rows * (UNIT_WEIGHT // 3)


def test_columns_of_changes_are_counted_where_they_were_seen_too(tmp_path: Path) -> None:
    """The first release counts each column by itself, changes among them."""
    store = stored(tmp_path, FIRST)
    columns = columns_of(store)
    (ref,) = shard_refs(store, "test/ages-v0", count=1, unit="person")
    source = StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT)
    counts = CountWorker(CountSpec(source=source, columns=columns, rows_per_unit=3)).columns()
    parts = np.split(counts, np.cumsum(columns.counted)[:-1])
    (after,) = columns.of("next_observation")
    for place, column in enumerate(columns.columns):
        expected = 2 if place == after else 3
        assert parts[place][: column.size].sum() == expected * (UNIT_WEIGHT // 3), column.name


@pytest.mark.parametrize("before", [[(7, 5.0)], [(7, 1e30), (7, np.nan)], [(7, 9.0)] * 5])
@pytest.mark.parametrize("unit", [FIRST, [(9, 4.0)]])
def test_no_other_unit_decides_what_follows_a_last_row(
    tmp_path: Path, unit: list[tuple[int, float]], before: list[tuple[int, float]]
) -> None:
    """Rows of the worst kind, of a unit before and behind in the shard, change nothing."""
    both = counted(stored(tmp_path / "both", [*before, *unit, *before]))[1:]
    alone = counted(stored(tmp_path / "alone", unit))[1:]
    other = counted(stored(tmp_path / "other", [*before, *before]))[1:]
    for place in range(2):
        np.testing.assert_array_equal(both[place] - other[place], alone[place])
        assert np.abs(other[place]).sum() <= UNIT_WEIGHT


def test_one_row_alone_leads_nowhere(tmp_path: Path) -> None:
    _, changes, ages = counted(stored(tmp_path, [(0, 4.0)]))
    assert (changes.sum(), ages.sum()) == (0, UNIT_WEIGHT // 3)


def test_an_audit_counts_rows_as_the_run_did(tmp_path: Path) -> None:
    store = stored(tmp_path, [*FIRST, (1, 5.0), (1, 5.0)])
    columns = columns_of(store)
    assert store.info("test/ages-v0").last_rows_copied
    chunks = list(store.iter_transitions("test/ages-v0", unit="person"))
    audited = columns.coded(steps_of(Transitions.concatenate(chunks)))
    (ref,) = shard_refs(store, "test/ages-v0", count=1, unit="person")
    run = [
        columns.coded(steps).cells
        for steps, _ in StoredSteps(ref=ref, max_trajectories_per_unit=UNIT_WEIGHT)()
    ]
    np.testing.assert_array_equal(audited.cells, np.concatenate(run))
