"""The columns of a flat table as typed arrays, and its rows as trajectories."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.declared import (
    NUMBER,
    AnyKind,
    ColumnsSchema,
    DateKind,
    DeclaredTable,
    FlagKind,
    LabelledKind,
    NumberKind,
    unit_text,
    value_text,
    width,
)
from distributed_privrl.data.findings import Findings
from distributed_privrl.data.packing import join_rows
from distributed_privrl.data.spaces import Space, components
from distributed_privrl.data.trajectories import (
    Trajectories,
    Transitions,
    as_part,
    hash_unit,
    offsets_of,
)
from distributed_privrl.data.values import NO_CATEGORY, Coded, coded, numbers, times

if TYPE_CHECKING:
    import pandas as pd

_NULL = "these are null rows, which methods leave out"


@dataclass(frozen=True, kw_only=True, eq=False)
class Table:
    """Rows of a table, whose columns are read as the parts of a transition.

    Args:
        source: where they come from, for messages.
        frame: N rows.
        declared: roles and kinds of the columns.
        observation: space of the observations.
        action: space of the actions.
        findings: is told what the rows hold.
    """

    source: str
    frame: "pd.DataFrame"
    declared: DeclaredTable
    observation: Space
    action: Space
    findings: Findings
    _hashes: dict[str, NDArray[np.uint64]] = field(default_factory=dict)

    @property
    def columns(self) -> ColumnsSchema:
        """Roles of the columns."""
        return self.declared.columns

    def __len__(self) -> int:
        return len(self.frame)

    def transitions(self) -> Transitions:
        """Return the rows as they stand; without a successor column, s' is s for the time being.

        Raises:
            ConfigError: a column does not hold what it should, or has a gap where none may be.
        """
        observations = self._part("observation", self.columns.of("observation"))
        following, acted = self.columns.following, self.columns.of("action")
        return Transitions(
            observations=observations,
            actions=self._part("action", acted) if acted else np.zeros(len(self), np.int64),
            rewards=self._rewards(),
            next_observations=(self._part("observation", following) if following else observations),
            terminated=self._flags(
                self.columns.termination, default=not self.columns.has_successors
            ),
            truncated=self._flags(self.columns.truncated),
            unit_ids=self.units(self.columns.unit or self.columns.trajectory),
        )

    def _part(self, name: str, columns: Sequence[str]) -> NDArray[Any]:
        """Return observations or actions: float32 (N, W), or int64 (N,) or (N, W) of categories.

        What is no category becomes a number far outside every space, or NaN in a Box.
        """
        space: Space = getattr(self, name)
        kinds = [kind for _, kind in self.declared.part(name)]
        named = list(zip(columns, kinds, strict=True))
        if isinstance(space, Box):
            return as_part(name, self._box(space, named))
        each = [
            self._component(column, kind, component)
            for (column, kind), component in zip(named, components(space), strict=True)
        ]
        return each[0] if isinstance(space, Discrete) else np.stack(each, axis=1)

    def _box(self, space: Box, named: Sequence[tuple[str, AnyKind]]) -> NDArray[np.float64]:
        held, start = np.empty((len(self), space.shape[0])), 0
        for column, kind in named:
            found, stop = self._coded(column, kind), start + width(kind)
            block = held[:, start:stop]
            block[:] = found.numbers
            if not isinstance(kind, LabelledKind):
                low, high = float(space.low[start]), float(space.high[start])
                if kind.missing == "indicator":  # what stands beside it is a number of the space
                    block[found.missing, 0] = np.clip(0.0, low, high)
                with np.errstate(all="ignore"):
                    values = block[:, 0].astype(np.float32)
                    outside = np.isfinite(values) & ((values < low) | (values > high))
                kept = "kept as they are; synthetic values stay inside"
                self._found(f"{column}: outside {low:g} to {high:g}", kept, outside)
            start = stop
        return held

    def _component(
        self, column: str, kind: AnyKind, component: Discrete[np.int64]
    ) -> NDArray[np.int64]:
        found, start = self._coded(column, kind), int(component.start)
        codes = found.codes
        if isinstance(kind, LabelledKind):
            return np.where(codes == NO_CATEGORY, codes, codes + start)
        outside = ~found.missing & ((codes < start) | (codes >= start + int(component.n)))
        self._found(f"{column}: outside its space", _NULL, outside, named=column)
        return codes

    def _coded(self, column: str, kind: AnyKind) -> Coded:
        """Return a column as numbers, and note what it lacks."""
        found = coded(self.frame[column], kind, name=self._name(column))
        if kind.missing == "refuse" and found.missing.any():
            raise ConfigError(
                f"{self._name(column)} has rows without a value, which the schema refuses"
            )
        kept = {"own": "this is a category of its own", "indicator": "its indicator says so"}
        advice = f": declare kinds.{column}.missing to keep them"
        null = _NULL if column == self.columns.reward else f"{_NULL}{advice}"
        self._found(f"{column}: no value", kept.get(kind.missing, null), found.missing)
        named = column if isinstance(kind, LabelledKind) else None
        self._found(*_unknown(column, kind), found.unknown, named=named)
        return found

    def _rewards(self) -> NDArray[np.float32]:
        column = self.columns.reward
        if not self.columns.has_reward:
            return np.zeros(len(self), np.float32)
        values = self._coded(column, self.declared.kind(column)).numbers
        return as_part("reward", values)[:, 0]

    def _found(
        self, what: str, then: str, rows: NDArray[np.bool_], *, named: str | None = None
    ) -> None:
        """Tell of rows, and where they are ``named`` what stands in that column of theirs."""
        if rows.any():
            values = () if named is None else map(value_text, self.frame[named][rows])
            self.findings.add(what, then, rows, self._owners(), values)

    def _owners(self) -> NDArray[np.uint64] | None:
        column = self.columns.unit or self.columns.trajectory
        return None if column is None else self.units(column)

    def _name(self, column: str) -> str:
        return f"{self.source}: column {column!r}"

    def _flags(self, column: str | None, *, default: bool = False) -> NDArray[np.bool_]:
        """Return a column of true and false, or the same in all rows if it is not named.

        Raises:
            ConfigError: the column holds something else, or nothing, in some row.
        """
        if column is None:
            return np.full(len(self), default)
        kind = self.declared.kind(column)
        if isinstance(kind, NumberKind):
            values = numbers(self.frame[column], name=self._name(column))
        else:
            values = coded(self.frame[column], kind, name=self._name(column)).numbers[:, 0]
        if not ((values == 0) | (values == 1)).all():
            no, yes = kind.values if isinstance(kind, FlagKind) else ("false", "true")
            raise ConfigError(
                f"{self._name(column)} must be true or false (1 or 0) in every row"
                if kind == NUMBER
                else f"{self._name(column)} must be {no} or {yes} in every row"
            )
        return np.asarray(values == 1)

    def units(self, column: str | None) -> NDArray[np.uint64]:
        """Return the hashes of a column's values, (N,), or positions if it is not named.

        Raises:
            ConfigError: a value is missing or blank: every row needs its unit.
        """
        import pandas as pd

        if column is None:
            return np.arange(len(self), dtype=np.uint64)
        if column not in self._hashes:
            codes, values = pd.factorize(self.frame[column])
            names = [unit_text(value) for value in values]
            if (codes < 0).any() or "" in names:
                raise ConfigError(
                    f"{self._name(column)} has rows without a value: say whose they are, or leave"
                    " them out before the import"
                )
            hashes = np.array([hash_unit(name) for name in names], dtype=np.uint64)[codes]
            self._note_alike(column, names, codes, hashes)
            self._hashes[column] = hashes
        return self._hashes[column]

    def _note_alike(
        self, column: str, names: Sequence[str], codes: NDArray[Any], hashes: NDArray[np.uint64]
    ) -> None:
        """Tell the owner of names of which several differ in their letters' case alone."""
        spellings = defaultdict(set)
        for name in names:
            spellings[name.casefold()].add(name)
        alike = np.array([len(spellings[name.casefold()]) > 1 for name in names], bool)[codes]
        self.findings.add(
            f"{column}: the same as another but for its case",
            f"each spelling is a {column} of its own; if they are the same, spell them alike",
            alike,
            hashes,
            (names[code] for code in codes[alike]),
        )

    def order(self, column: str) -> tuple[NDArray[np.float64], bool]:
        """Return the numbers that a column sorts rows by, (N,), and whether they are times.

        Times are in seconds, exact to a microsecond.

        Raises:
            ConfigError: it holds neither numbers nor ISO 8601 times, or there is no value.
        """
        from pandas.api.types import is_numeric_dtype

        series = self.frame[column]
        timed = not is_numeric_dtype(series.dtype)
        if not timed:
            values = numbers(series, name=self._name(column))
        else:
            try:
                values = times(series, name=self._name(column))
            except ConfigError:
                raise ConfigError(
                    f"{self._name(column)} must hold numbers or ISO 8601 times to sort by"
                ) from None
        if np.isnan(values).any():
            raise ConfigError(f"{self._name(column)} has rows without a value to sort by")
        return values, timed


def _unknown(column: str, kind: AnyKind) -> tuple[str, str]:
    """Return what a value that a kind does not know is, and what becomes of it."""
    if isinstance(kind, LabelledKind):
        truth = any(isinstance(label, bool) for label in kind.labels)
        hint = " (the schema's yes and no without quotes are true and false)" if truth else ""
        return f"{column}: a value that is not declared{hint}", _NULL
    if isinstance(kind, DateKind):
        return (
            f"{column}: more than 16,777,216 {kind.unit} from its origin",
            "these are not exact in float32: take an origin near them, or a larger unit",
        )
    return f"{column}: infinite", _NULL


def assemble_trajectories(
    rows: Transitions, lengths: NDArray[np.int64], *, successors_known: bool, source: str
) -> Trajectories:
    """Return rows as trajectories, the final observation of each after its steps.

    Where successors are not known, the last row of a trajectory that does not terminate is its
    final observation alone, and the step before it is truncated; a terminating last row repeats its
    observation: no agent bootstraps from it, and marginals count nothing of it
    (`marginals.columns.TableColumns`).

    Args:
        rows: N transitions, trajectory after trajectory.
        lengths: rows of each trajectory, (K,), all above zero.
        successors_known: whether ``next_observations`` are the true ones.
        source: the file, for messages.

    Raises:
        ConfigError: a trajectory has rows of several units, or a known successor is not the next
            row's observation.
    """
    last = offsets_of(lengths)[1:] - 1
    inner = np.delete(np.arange(len(rows)), last)
    if (rows.unit_ids[inner] != rows.unit_ids[inner + 1]).any():
        raise ConfigError(
            f"{source}: some trajectories have rows of several units: a trajectory id must belong"
            " to one unit, e.g. an id made of both"
        )
    if successors_known and not np.array_equal(
        rows.next_observations[inner], rows.observations[inner + 1], equal_nan=True
    ):
        raise ConfigError(
            f"{source}: some next_observation is not the observation of the trajectory's next row:"
            " check the order, or import the rows on their own, with neither trajectory nor"
            " split_at_flags"
        )
    cut = ~rows.terminated[last] & (not successors_known)
    steps = lengths - cut
    kept = steps > 0
    chosen = np.ones(len(rows), dtype=bool)
    chosen[last[cut]] = False
    truncated, successors = rows.truncated.copy(), rows.next_observations.copy()
    ends = (last - cut)[kept]
    truncated[ends] |= ~rows.terminated[ends]
    successors[ends] = rows.next_observations[last[kept]]
    ended = replace(rows, truncated=truncated, next_observations=successors)
    return join_rows(ended.select(chosen), steps[kept])
