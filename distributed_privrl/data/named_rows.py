"""Rows of a dataset as one table: columns under their names, each category in one of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import pandas as pd
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.data.labels import MISSING, column_labels
from distributed_privrl.data.layout import RowLayout, category_of
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import Space, components, group_values, groups_of
from distributed_privrl.data.trajectories import Transitions

CATEGORY: Final = "category"


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Transitions with named columns.

    Args:
        frame: (N, columns): state, action, reward, successor (missing after a terminal row) and
            whether a row terminates; what a table has not is left out.
        state: columns of the state.
        action: of the action; () where there is none.
        successor: of the next state, in the order of ``state``; () where nothing follows a row.
        units: (N,) whose a row is; of synthetic rows, which are nobody's, any number.
        ends: (N,) whether a row is the last of its trajectory, whose rows follow each other; true
            of rows on their own.
        reward: column of the reward; None: there is none.
        end: column that says whether a row terminates; None: there is none.
        table: whether columns have the names of somebody's table.
    """

    frame: pd.DataFrame
    state: tuple[str, ...]
    action: tuple[str, ...]
    successor: tuple[str, ...]
    units: NDArray[np.uint64]
    ends: NDArray[np.bool_]
    reward: str | None = "reward"
    end: str | None = "terminated"
    table: bool = False

    def __len__(self) -> int:
        return len(self.frame)

    @property
    def own(self) -> tuple[str, ...]:
        """The columns of a row itself: all but its successor."""
        return (*self.state, *self.action, *self.rewarded, *([self.end] if self.end else []))

    @property
    def rewarded(self) -> tuple[str, ...]:
        """The column of the reward; () where there is none."""
        return () if self.reward is None else (self.reward,)

    def select(self, chosen: NDArray[Any]) -> "Rows":
        """Return the rows at ``chosen`` (positions, or a mask)."""
        return replace(
            self,
            frame=self.frame.iloc[np.arange(len(self))[chosen]].reset_index(drop=True),
            units=self.units[chosen],
            ends=self.ends[chosen],
        )

    def halves(self, rng: np.random.Generator) -> tuple["Rows", "Rows"]:
        """Return the rows of a random half of the units, and those of the others."""
        units = np.unique(self.units)
        mine = np.isin(self.units, rng.permutation(units)[: len(units) // 2])
        return self.select(mine), self.select(~mine)

    def sample(self, count: int, rng: np.random.Generator) -> "Rows":
        """Return ``count`` random rows, or all, in their order."""
        if len(self) <= count:
            return self
        return self.select(np.sort(rng.choice(len(self), count, replace=False)))

    def part(self, count: int, rng: np.random.Generator) -> "Rows":
        """Return about ``count`` rows, or all, in their order, of as many units as can be.

        Rows on their own are random ones of all units. Those of trajectories are all rows of random
        units: what a step has to do with the next one needs both.
        """
        if self.ends.all():
            return self.sample(count, rng)
        units, lengths = np.unique(self.units, return_counts=True)
        order = rng.permutation(len(units))
        taken = np.searchsorted(np.cumsum(lengths[order]), count, side="left") + 1
        return self.select(np.isin(self.units, units[order[:taken]]))


def is_category(column: pd.Series) -> bool:
    """Say whether a column holds categories."""
    return isinstance(column.dtype, pd.CategoricalDtype)


def named_rows(transitions: Transitions, ends: NDArray[np.bool_], info: DatasetInfo) -> Rows:
    """Return transitions under the names that their dataset's columns have.

    A category is one column of type `CATEGORY`, whose values are texts, however it is stored; a
    flag has ``yes`` and ``no``. What is no number and no category of its space is missing, and so
    is a number whose indicator says so.

    Args:
        transitions: N rows of the dataset.
        ends: (N,) see `Rows`.
        info: of the dataset.
    """
    layout, labels = RowLayout(info.observation_space, info.action_space), column_labels(info)
    names = {part: labels[block] for part, block in layout.blocks.items()}
    parts = {
        "observation": list(
            _columns(transitions.observations, info.observation_space, names["observation"])
        )
    }
    if info.has_action:
        parts["action"] = list(_columns(transitions.actions, info.action_space, names["action"]))
    if info.has_reward:
        parts["reward"] = [(names["reward"][0], _number(transitions.rewards))]
    if info.has_successors:
        after = _columns(
            transitions.next_observations, info.observation_space, names["next_observation"]
        )
        gone = transitions.terminated
        parts["next_observation"] = [(name, column.mask(gone)) for name, column in after]
        parts["terminal"] = [(names["terminal"][0], _flag(transitions.terminated))]
    columns: dict[str, pd.Series] = {}
    called: dict[str, tuple[str, ...]] = {}
    for part, found in parts.items():
        own = [name if name not in columns else f"{part} {name}" for name, _ in found]
        columns |= dict(zip(own, (column for _, column in found), strict=True))
        called[part] = tuple(own)
    return Rows(
        frame=pd.DataFrame(columns),
        state=called["observation"],
        action=called.get("action", ()),
        successor=called.get("next_observation", ()),
        units=transitions.unit_ids,
        ends=ends,
        reward=called["reward"][0] if info.has_reward else None,
        end=called["terminal"][0] if info.has_successors else None,
        table=info.declared is not None,
    )


def _columns(
    values: NDArray[Any], space: Space, names: Sequence[str]
) -> Iterator[tuple[str, pd.Series]]:
    """Yield each number and category of a part with its name."""
    flat = values.reshape(len(values), -1)
    if isinstance(space, Box):
        yield from _of_box(flat, space, names)
        return
    begin = 0
    for place, component in enumerate(components(space)):
        own = names[begin : begin + int(component.n)]
        codes = flat[:, place] - int(component.start)
        inside = (codes >= 0) & (codes < len(own))
        yield category_of(own[0])[0], _category(np.where(inside, codes, -1), own)
        begin += len(own)


def _of_box(
    flat: NDArray[Any], space: Box, names: Sequence[str]
) -> Iterator[tuple[str, pd.Series]]:
    groups, place = dict(groups_of(space)), 0
    while place < len(names):
        stop, name = groups.get(place, place + 1), names[place]
        if place not in groups:
            number = _number(flat[:, place])
            if stop < len(names) and names[stop] == f"{name}{MISSING}":
                number = number.mask(flat[:, stop] == 1)
            yield name, number
        elif stop - place > 1:
            codes = group_values(flat[:, place:stop])
            yield category_of(name)[0], _category(codes, names[place:stop])
        else:
            codes = group_values(flat[:, place:stop])
            yield name, _flag(codes == 1, known=codes >= 0)
        place = stop


def _number(values: NDArray[Any]) -> pd.Series:
    wide = values.astype(np.float64)
    return pd.Series(np.where(np.isfinite(wide), wide, np.nan))


def _category(codes: NDArray[np.int64], names: Sequence[str]) -> pd.Series:
    labels = [category_of(name)[1] for name in names]
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(labels)))


def _flag(values: NDArray[np.bool_], *, known: NDArray[np.bool_] | None = None) -> pd.Series:
    codes = values.astype(np.int64)
    codes = codes if known is None else np.where(known, codes, -1)
    return pd.Series(pd.Categorical.from_codes(codes, categories=pd.Index(["no", "yes"])))
