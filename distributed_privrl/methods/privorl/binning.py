"""The variables of a row and their bins, from public facts alone."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.config import DataConfig
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.spaces import box_bounds, components, groups_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.models.row_bins import RowBins, Variable
from distributed_privrl.stages.encoders import bounds_source

_WIDER = 0.25
"""Share of the public range that bins go beyond it on each side."""
_NEAR = 4.0
"""A space's bounds stand for the range where they are at most so many public ranges apart."""
_CLOSEST = 1e-5
_LEAST = 1e-3
"""Standardised; no range is narrower."""
_ROWS_FOR_QUANTILES = 100_000


def public_bins(
    data: DataConfig, store: DatasetStore, encoder: TransitionEncoder, *, count: int
) -> RowBins:
    """Return the variables of a run's transitions; see `row_bins`.

    Args:
        data: of the run.
        store: datasets; about 100,000 rows of the public ones are looked at.
        encoder: of the transitions.
        count: bins of a number.

    Privacy: as `row_bins`.
    """
    public = [np.empty((0, encoder.width), np.float32)]
    for dataset in data.public:
        chunks = store.iter_transitions(dataset, unit="transition")
        rows = np.concatenate([encoder.encode(chunk).rows for chunk in chunks])
        public.append(rows[:: max(1, len(rows) * len(data.public) // _ROWS_FOR_QUANTILES)])
    declared = bounds_source(data) != "public"
    return row_bins(encoder, np.concatenate(public), count=count, declared=declared)


def foreseen_bins(encoder: TransitionEncoder, count: int) -> RowBins:
    """Return the variables of a plan, for which no row is read: about as many bins as in a run.

    Args:
        encoder: of rows; its scaling may stand for one that is not known.
        count: bins of a number.
    """
    return row_bins(encoder, np.empty((0, encoder.width), np.float32), count=count, declared=True)


def row_bins(
    encoder: TransitionEncoder, public: NDArray[np.float32], *, count: int, declared: bool
) -> RowBins:
    """Return the variables of the encoder's rows.

    Half of a number's edges are even over its range, the other half quantiles of public rows, so
    that bins are narrow where public numbers lie and somewhere everywhere else; a value on which
    quantiles coincide has a bin of its own, as have actions at their bounds. The range is the
    public one and a quarter more on each side, or the space's, with the public rows beyond it,
    where that is not much wider, or the declared bounds. Without public rows all edges are even,
    those of differences denser at 0.

    A floor of the drawing holds for the numbers of observations alone: rare actions are what
    offline learning improves by, and rare rewards, ends and categories are what it must know of.

    Args:
        encoder: of the rows; its scaling is public.
        public: encoded public rows ``(N, D)``, of which about 100,000 are looked at; none:
            ``N = 0``.
        count: bins of a number; fewer where public numbers coincide.
        declared: the scaling comes from declared or paid bounds, not from public rows.

    Privacy: reads public rows and the spaces, no sensitive row.
    """
    public = public[:: max(1, len(public) // _ROWS_FOR_QUANTILES)]
    low, high = _ranges(encoder, public, declared=declared)
    cuts = _clipped_apart(encoder)
    variables = (
        _number(
            column,
            (low[column], high[column]),
            public[:, column],
            count,
            cuts=cuts.get(column, ()),
            difference=difference,
        )
        if kind == "number"
        else Variable(start=column, kind="level", marks=marks)
        if kind == "level"
        else Variable(start=column, kind="one_hot", marks=marks)
        for column, kind, marks, difference in _kinds(encoder)
    )
    return RowBins(tuple(_of_part(one, encoder) for one in variables))


def _of_part(variable: Variable, encoder: TransitionEncoder) -> Variable:
    """Return the variable with its part's name, and a floor where it is an observation's number."""
    (part,) = (
        name
        for name, block in encoder.layout.blocks.items()
        if block.start <= variable.start < block.stop
    )
    floored = variable.kind == "number" and part in ("observation", "next_observation")
    return replace(variable, floored=floored, part=part)


def _kinds(encoder: TransitionEncoder) -> Iterator[tuple[int, str, tuple[float, ...], bool]]:
    """Yield first column, kind, marks, and whether a number is a difference, of each variable."""
    layout = encoder.layout
    differences = layout.coding.next_observation == "difference"
    for name, block in layout.blocks.items():
        space = {
            "observation": layout.observation_space,
            "action": layout.action_space,
            "next_observation": layout.observation_space,
        }.get(name)
        if space is not None and not isinstance(space, Box):
            start = block.start
            for component in components(space):
                size = int(component.n)
                yield start, "one_hot", tuple(map(float, range(size))), False
                start += size
        elif name == "terminal":
            yield block.start, "level", (-1.0, 1.0), False
        elif name == "reward" and layout.coding.reward_levels:
            marks = np.linspace(-1, 1, len(layout.coding.reward_levels))
            yield block.start, "level", tuple(marks.tolist()), False
        else:
            groups = () if space is None else groups_of(space)
            sizes = {block.start + start: stop - start for start, stop in groups}
            column = block.start
            while column < block.stop:
                size = sizes.get(column, 0)
                if size > 1:
                    yield column, "one_hot", tuple(map(float, range(size))), False
                elif size:
                    yield column, "level", (-1.0, 1.0), False
                else:
                    yield column, "number", (), name == "next_observation" and differences
                column += max(size, 1)


def _ranges(
    encoder: TransitionEncoder, public: NDArray[np.float32], *, declared: bool
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the lowest and highest number that bins cover, standardised ``(D,)``."""
    layout, scaling = encoder.layout, encoder.scaling
    least, most = ((side - scaling.offset) / scaling.scale for side in layout.limits)
    if declared or not len(public):
        # Bounds were scaled to the deviation of a uniform number, or of a difference of two.
        wide = np.full(layout.width, 3.0**0.5)
        if layout.coding.next_observation == "difference":
            wide[layout.blocks["next_observation"]] = 6.0**0.5
        return _apart(np.maximum(-wide, least), np.minimum(wide, most))
    low, high = (side.astype(np.float64) for side in (public.min(axis=0), public.max(axis=0)))
    seen = np.maximum(high - low, _LEAST)
    spaces = most - least <= _NEAR * seen
    spaces[layout.blocks["action"]] |= bool(layout.coding.action_margin)
    spaces &= np.isfinite(most - least)
    # Public rows may lie beyond a sensitive space: what is learned of them must keep its place.
    below, above = low - _WIDER * seen, high + _WIDER * seen
    low = np.where(spaces, np.minimum(least, low), np.maximum(below, np.minimum(least, low)))
    high = np.where(spaces, np.maximum(most, high), np.minimum(above, np.maximum(most, high)))
    return _apart(low, high)


def _apart(
    low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ranges that are not empty: those that were, around where their ends met."""
    middle, empty = (low + high) / 2, high - low < _LEAST
    return np.where(empty, middle - _LEAST, low), np.where(empty, middle + _LEAST, high)


def _clipped_apart(encoder: TransitionEncoder) -> dict[int, tuple[float, float]]:
    """Return the numbers beyond which an action's column means its bound, by column."""
    layout, space = encoder.layout, encoder.layout.action_space
    if not (layout.coding.action_margin and isinstance(space, Box)):
        return {}
    block = layout.blocks["action"]
    sides = zip(layout.limits, box_bounds(space), strict=True)
    halfway = [
        ((coded[block] + bound) / 2 - encoder.scaling.offset[block]) / encoder.scaling.scale[block]
        for coded, bound in sides
    ]
    both = zip(range(block.start, block.stop), *(side.tolist() for side in halfway), strict=True)
    return {
        column: (low, high)
        for column, low, high in both
        if math.isfinite(low) and math.isfinite(high)
    }


def _number(
    column: int,
    ends: tuple[float, float],
    public: NDArray[np.float32],
    count: int,
    *,
    cuts: Sequence[float],
    difference: bool,
) -> Variable:
    low, high = ends
    quantiles = count // 2 if len(public) else 0
    even = np.linspace(-1, 1, count - quantiles + 1)
    if difference and not quantiles:
        even = even**3
    edges = np.concatenate([low + (even + 1) / 2 * (high - low), cuts])
    close = _CLOSEST * (high - low)
    if quantiles:
        found = np.quantile(public.astype(np.float64), np.linspace(0, 1, quantiles + 1))
        atoms = np.unique(found[1:][np.diff(found) == 0])
        edges = np.concatenate([edges, found])
        edges = edges[(np.abs(edges[:, None] - atoms) > 2 * close).all(axis=1)]
        edges = np.concatenate([edges, atoms - close, atoms + close, (low, high)])
    edges = np.unique(np.clip(edges, low, high))
    kept = edges[np.append(True, np.diff(edges) > close / 2)]
    kept[-1] = high
    return Variable(start=column, kind="number", marks=tuple(kept.tolist()))
