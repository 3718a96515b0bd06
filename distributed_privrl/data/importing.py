"""A table or file of arrays as a stored dataset, by a schema that names its columns."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Purpose, Sensitive
from distributed_privrl.data.declared import LAST, DeclaredTable, column_names
from distributed_privrl.data.findings import Findings
from distributed_privrl.data.kept import Order, above
from distributed_privrl.data.metadata import PUBLIC_KEY, DatasetInfo
from distributed_privrl.data.schema import ImportSchema, declared_space, load_schema
from distributed_privrl.data.sources import Source, open_file, open_table
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.tabular import Table, assemble_trajectories
from distributed_privrl.data.trajectories import TRAJECTORY, Trajectories, Transitions, offsets_of

RowsT = TypeVar("RowsT", Transitions, Trajectories)


def import_file(
    path: Path, schema: ImportSchema, store: DatasetStore, dataset: str
) -> Sensitive[tuple[str, ...]]:
    """Write the rows of a file as a new dataset, and return what its owner should know of them.

    With a trajectory column, rows are sorted by ``order`` within it, those of equal order as they
    stand in the file; with ``split_at_flags``, they follow each other and a trajectory ends at a
    row that is terminated or truncated. A trajectory's last row ends it: its successor is
    ``next_observation`` if that is named, anything if it terminates, and otherwise unknown: then
    its observation is the final one, and its step is dropped. Without either, rows are independent
    transitions. Values that are missing or not finite, and categories outside their space, are kept
    as they are, unless ``kinds`` say otherwise; the encoder makes null rows of them.

    Args:
        path: a ``.csv``, ``.parquet``, ``.npz``, ``.hdf5`` or ``.h5`` file.
        schema: what its columns or arrays mean.
        store: where the dataset goes.
        dataset: its id.

    Returns:
        a line each on missing values, values outside their space, rows of equal order and rows left
        out, with exact numbers of rows and units.

    Raises:
        ConfigError: the file, a column, a type or the id is wrong; nothing is written.
        StorageError: the file cannot be read, or the dataset not written.

    Privacy: what is returned depends on single rows. It is for the table's owner alone, and nothing
    of it is written.
    """
    return _import(
        open_file(path, schema.declared, separator=schema.separator), schema, store, dataset
    )


def from_table(
    table: Any,
    schema: ImportSchema | Mapping[str, Any] | Path | str,
    *,
    dataset: str,
    store: DatasetStore | None = None,
) -> DatasetInfo:
    """Write the rows of a table in memory as a new dataset; see `import_file`.

    What the owner should know of the rows goes to standard error, a line each.

    Args:
        table: of pandas, Polars or Arrow (whatever speaks Arrow's stream protocol), or a mapping of
            names to arrays.
        schema: what its columns mean: as in a schema file, as a mapping, or the file's path.
        dataset: id of the new dataset.
        store: where it goes (default: the folder of all datasets).

    Raises:
        ConfigError: the table, the schema, a column, a type or the id is wrong; nothing is written.
        StorageError: the dataset cannot be written.

    Privacy: as `import_file`; standard error is the owner's.
    """
    store = DatasetStore() if store is None else store
    if isinstance(schema, Path | str):
        schema = load_schema(Path(schema))
    if not isinstance(schema, ImportSchema):
        schema = validate(ImportSchema, dict(schema), source="schema")
    found = _import(open_table(table, schema.declared), schema, store, dataset)
    for line in found.open(Purpose.OWNER):
        sys.stderr.write(f"{line}\n")
    return store.info(dataset)


def _import(
    source: Source, schema: ImportSchema, store: DatasetStore, dataset: str
) -> Sensitive[tuple[str, ...]]:
    declared = source.declared
    columns = declared.columns
    following, observed = len(columns.following), len(column_names(columns.observation))
    if following not in (0, observed):
        raise ConfigError(
            f"{source.name}: next_observation has {following} columns, observation {observed}:"
            " name as many, in the same order"
        )
    findings = Findings(columns.unit or (TRAJECTORY if columns.trajectory else None))
    spaces = {
        f"{name}_space": declared_space(
            name, getattr(schema.spaces, name), [kind for _, kind in declared.part(name)]
        )
        for name in ("observation", "action")
    }
    options: dict[str, Any] = {
        **spaces,
        "environment": schema.environment,
        # Without a unit a trajectory is one, and its column has the names by which the ledger knows
        # the same people in another table.
        "unit_column": columns.unit or columns.trajectory,
        # Arrays of several columns have no names of their own.
        "declared": declared if columns == schema.columns else None,
        "metadata": {PUBLIC_KEY: True} if schema.public else {},
    }
    tables = (
        Table(
            source=source.name,
            frame=frame,
            declared=declared,
            observation=spaces["observation_space"],
            action=spaces["action_space"],
            findings=findings,
        )
        for frame in source.frames
    )
    held = isinstance(spaces["observation_space"], Box)
    orders = declared.orders(held=held)
    facts = declared.lasting_by_name(held=held), declared.rising_by_name(held=held), orders
    _check_orders(orders, spaces["observation_space"], source.name)
    if schema.has_trajectories:
        rows = _Rows.of(tables, declared, source.name)
        trajectories = _trajectories(rows, declared, findings, source.name)
        store.write_trajectories(
            dataset,
            (_noted(one, one.transitions(TRAJECTORY), *facts, findings) for one in trajectories),
            layout=schema.layout,
            **options,
        )
    else:
        steps = _transitions(tables, columns.unit is not None, source.name)
        store.write_transitions(
            dataset,
            (_noted(one, one, *facts, findings) for one in steps),
            layout="transitions",
            has_successors=columns.has_successors,
            **options,
        )
    return Sensitive(findings.lines())


def _check_orders(orders: Mapping[str, Order], space: Space, source: str) -> None:
    """Check that numbers that are lowered to their limits stay in their space.

    Args:
        orders: places of columns that are never above others, by their name.
        space: of observations.
        source: name of the table.

    Raises:
        ConfigError: a limit may lie below all that the number may be.
    """
    if not isinstance(space, Box):
        return
    for name, order in orders.items():
        own, limit = float(space.low[order.lower]), float(space.low[order.upper])
        if limit < own:
            raise ConfigError(
                f"{source}: {name} has at_most, and its space begins at {own:g}, that of its limit"
                f" at {limit:g}: a number that is lowered would leave it; give both one low"
            )


_FIRST_KEPT = "released trajectories keep their first value"
_NO_FALL = "released numbers stay where they would fall"


def _noted(
    whole: RowsT,
    rows: Transitions,
    stays: Mapping[str, Sequence[int]],
    rises: Mapping[str, Sequence[int]],
    orders: Mapping[str, Order],
    findings: Findings,
) -> RowsT:
    """Note in which rows what is declared does not hold, and return what was read.

    Args:
        whole: what was read.
        rows: the same as rows.
        stays: places of lasting columns, by their name.
        rises: places of those that never fall, by their name.
        orders: places of columns that are never above others, by their name.
        findings: is told.
    """
    for places_by_name, breaks, what, remedy in (
        (stays, np.not_equal, "changes, and is declared to be lasting", _FIRST_KEPT),
        (rises, np.less, "falls, and is declared to be rising", _NO_FALL),
    ):
        for name, places in places_by_name.items():
            before, after = (
                part[:, list(places)] for part in (rows.observations, rows.next_observations)
            )
            known = np.isfinite(before).all(axis=1) & np.isfinite(after).all(axis=1)
            broken = known & np.any(breaks(after, before), axis=1)
            findings.add(f"{name}: {what}", remedy, broken, rows.unit_ids)
    for name, order in orders.items():
        findings.add(
            f"{name}: above its at_most",
            "released rows are lowered to it",
            above(rows.observations, order),
            rows.unit_ids,
        )
    return whole


def _transitions(tables: Iterator[Table], with_units: bool, source: str) -> Iterator[Transitions]:
    """Yield the rows of a table of independent ones."""
    count = 0
    for table in tables:
        rows = table.transitions()
        if not with_units:
            positions = np.arange(count, count + len(rows), dtype=np.uint64)
            rows = replace(rows, unit_ids=positions)
        count += len(rows)
        yield rows
    if count == 0:
        raise ConfigError(f"{source} has no rows")


@dataclass(frozen=True, kw_only=True, eq=False)
class _Rows:
    """All rows of a table of trajectories.

    Args:
        rows: N transitions; units are those of the unit column, or trajectories.
        trajectories: ``(N,)`` hashes of the trajectory ids; None: flags tell them.
        order: ``(N,)`` numbers to sort by; None: as they stand.
    """

    rows: Transitions
    trajectories: NDArray[np.uint64] | None
    order: NDArray[np.float64] | None

    @classmethod
    def of(cls, tables: Iterator[Table], declared: DeclaredTable, source: str) -> "_Rows":
        """Read all rows, and let go of the table as they come."""
        columns = declared.columns
        rows: list[Transitions] = []
        ids: list[NDArray[np.uint64]] = []
        order: list[tuple[NDArray[np.float64], bool]] = []
        for table in tables:
            rows.append(table.transitions())
            if columns.trajectory is not None:
                ids.append(table.units(columns.trajectory))
            if columns.order is not None:
                order.append(table.order(columns.order))
        if not rows:
            raise ConfigError(f"{source} has no rows")
        if len({timed for _, timed in order}) > 1:
            raise ConfigError(
                f"{source}: column {columns.order!r} holds numbers in some rows and times in others"
            )
        return cls(
            rows=Transitions.concatenate(rows),
            trajectories=np.concatenate(ids) if ids else None,
            order=np.concatenate([values for values, _ in order]) if order else None,
        )


def _trajectories(
    read: _Rows, declared: DeclaredTable, findings: Findings, source: str
) -> Iterator[Trajectories]:
    """Yield whole trajectories, in the order of their first rows."""
    rows, columns = read.rows, declared.columns
    if read.trajectories is None:
        ends = rows.terminated | rows.truncated
        ends[-1] = True
        lengths = np.diff(np.flatnonzero(ends) + 1, prepend=0)
        places = np.arange(len(rows))
        if columns.unit is None:
            rows.unit_ids[:] = np.repeat(np.arange(len(lengths), dtype=np.uint64), lengths)
    else:
        if columns.unit is None:
            rows.unit_ids[:] = read.trajectories
        places, lengths = _sorted(read, declared, findings)
    last = offsets_of(lengths)[1:] - 1
    if columns.terminated == LAST:
        rows.terminated[places[last]] = ~rows.truncated[places[last]]
    known = columns.next_observation is not None
    if not known:
        _note_cut(rows, places, lengths, findings)
    for part in _groups_of(lengths, CHUNK_ROWS):
        begin, end = int(last[part.start] + 1 - lengths[part.start]), int(last[part.stop - 1] + 1)
        yield assemble_trajectories(
            rows.select(places[begin:end]), lengths[part], successors_known=known, source=source
        )


def _sorted(
    read: _Rows, declared: DeclaredTable, findings: Findings
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the place of each row, trajectory after trajectory, and the rows of each."""
    assert read.trajectories is not None
    _, first, found = np.unique(read.trajectories, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    codes = rank[found]
    if read.order is None:
        return np.argsort(codes, kind="stable"), np.bincount(codes).astype(np.int64)
    places = np.lexsort((read.order, codes))
    tied = np.zeros(len(places), dtype=bool)
    before, after = places[:-1], places[1:]
    same = (codes[before] == codes[after]) & (read.order[before] == read.order[after])
    tied[before] |= same
    tied[after] |= same
    findings.add(
        f"{declared.columns.order}: the same as in another row of its trajectory",
        "these stay in the order of the file",
        tied,
        read.rows.unit_ids,
    )
    return places, np.bincount(codes).astype(np.int64)


def _note_cut(
    rows: Transitions,
    places: NDArray[np.int64],
    lengths: NDArray[np.int64],
    findings: Findings,
) -> None:
    """Note the last rows whose successor is unknown, and the units that they were all of."""
    last = places[offsets_of(lengths)[1:] - 1]
    cut = ~rows.terminated[last]
    units = rows.unit_ids[last]
    findings.add(
        "last rows: nothing known of what follows",
        "their actions and rewards are left out: name next_observation, or, where a trajectory is"
        " complete with its last row, terminated: last",
        cut,
        units,
    )
    left = np.unique(units[~cut | (lengths > 1)])
    gone = cut & (lengths == 1)
    then = "their trajectories are left out"
    findings.add("last rows: all that their trajectory has", then, gone, units)
    then = f"nothing of any such {findings.unit} arrives"
    nobody = gone & ~np.isin(units, left)
    findings.add("last rows: all that is left of whose they are", then, nobody, units)


def _groups_of(lengths: NDArray[np.int64], rows: int) -> Iterator[slice]:
    """Yield consecutive trajectories, of about ``rows`` rows together."""
    group = offsets_of(lengths)[:-1] // rows
    starts = np.flatnonzero(np.diff(group, prepend=-1)).tolist()
    for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True):
        yield slice(start, stop)
