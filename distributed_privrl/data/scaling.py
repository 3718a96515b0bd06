"""An affine map for each column of a row, from public statistics or declared bounds.

Never from sensitive rows: what the scaling knows is public.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds, check_bounds_columns
from distributed_privrl.data.layout import MOST_LEVELS, PLAIN, RowCoding, RowLayout, public_rows
from distributed_privrl.data.spaces import Space
from distributed_privrl.data.trajectories import Transitions

_BINARY_OFFSET = _BINARY_SCALE = 0.5
_FLOAT32_RESOLUTION = 1e-7


@dataclass(frozen=True, eq=False)
class Scaling:
    """Standardises rows: ``(raw - offset) / scale``.

    Args:
        offset: (D,) float64.
        scale: (D,) float64, above zero.

    Raises:
        ConfigError: the lengths differ, or a value is not finite, or a scale is not above zero.
    """

    offset: NDArray[np.float64]
    scale: NDArray[np.float64]

    def __post_init__(self) -> None:
        for name in ("offset", "scale"):
            object.__setattr__(self, name, np.array(getattr(self, name), dtype=np.float64))
        if self.offset.ndim != 1 or self.offset.shape != self.scale.shape:
            raise ConfigError(
                f"offset and scale must be (D,), got {self.offset.shape} and {self.scale.shape}"
            )
        if not (np.isfinite(self.offset).all() and np.isfinite(self.scale).all()):
            raise ConfigError("offset and scale must be finite")
        if not (self.scale > 0).all():
            raise ConfigError(f"scale must be above zero, got {self.scale.min()}")


def scaling_from_public(
    public: Mapping[str, Iterable[Transitions]],
    observation_space: Space,
    action_space: Space,
    *,
    coding: RowCoding = PLAIN,
) -> Scaling:
    """Return the mean and standard deviation of each column over public datasets.

    One-hot and terminal columns map {0, 1} to {-1, 1} whatever the data; a reward of few levels
    stays as it is coded; a constant column keeps scale 1.

    Args:
        public: chunks of transitions for each dataset id; read once, never held whole.
        observation_space: as in `RowLayout`.
        action_space: as in `RowLayout`.
        coding: as in `RowLayout`.

    Raises:
        ConfigError: a public value is not finite (names dataset and column), or there are no rows.
    """
    layout = RowLayout(observation_space, action_space, coding)
    count, mean, squares = 0, np.zeros(layout.width), np.zeros(layout.width)
    for rows in public_rows(layout, public):
        chunk_mean = rows.mean(axis=0)
        shift, total = chunk_mean - mean, count + len(rows)
        squares += ((rows - chunk_mean) ** 2).sum(axis=0)
        squares += shift**2 * (count * len(rows) / total)
        mean += shift * (len(rows) / total)
        count = total
    if count == 0:
        raise ConfigError(f"public datasets {sorted(public)} have no rows: nothing to scale by")
    deviation = np.sqrt(squares / count)
    constant = deviation <= np.maximum(_FLOAT32_RESOLUTION * np.abs(mean), 1e-30)
    return _with_binary(layout, mean, np.where(constant, 1.0, deviation))


def scaling_from_bounds(
    bounds: Bounds,
    observation_space: Space,
    action_space: Space,
    *,
    coding: RowCoding = PLAIN,
) -> Scaling:
    """Return a scaling from declared bounds: midpoint, and half-range / sqrt(3).

    That is the standard deviation of a column that is uniform between its bounds. A difference
    s' - s has offset 0 and scale range / sqrt(6), that of two independent uniform values. A column
    whose bounds coincide keeps scale 1.

    Raises:
        ConfigError: the bounds are of other columns than the spaces have.
    """
    layout = RowLayout(observation_space, action_space, coding)
    check_bounds_columns(bounds, layout)
    offset, scale = np.zeros(layout.width), np.ones(layout.width)
    position = {name: i for i, name in enumerate(bounds.columns)}
    for column, name in enumerate(layout.column_names):
        source = position.get(name.removeprefix("next_"))
        if source is None:
            continue
        low, high = bounds.low[source], bounds.high[source]
        difference = name.startswith("next_") and coding.next_observation == "difference"
        offset[column] = 0.0 if difference else (low + high) / 2
        if high > low:
            scale[column] = (high - low) / np.sqrt(6.0 if difference else 12.0)
    return _with_binary(layout, offset, scale)


def _with_binary(
    layout: RowLayout, offset: NDArray[np.float64], scale: NDArray[np.float64]
) -> Scaling:
    offset, scale = np.where(layout.coded, 0.0, offset), np.where(layout.coded, 1.0, scale)
    return Scaling(
        offset=np.where(layout.binary, _BINARY_OFFSET, offset),
        scale=np.where(layout.binary, _BINARY_SCALE, scale),
    )


def public_reward_levels(public: Mapping[str, Iterable[Transitions]]) -> tuple[float, ...]:
    """Return the values that public rewards take, where they are two to eight; else nothing.

    Args:
        public: chunks of transitions for each dataset id; read until a ninth value is seen.
    """
    seen: set[float] = set()
    for chunks in public.values():
        for chunk in chunks:
            seen.update(np.unique(chunk.rewards).tolist())
            if len(seen) > MOST_LEVELS:
                return ()
    finite = all(map(math.isfinite, seen))
    return tuple(sorted(seen)) if len(seen) > 1 and finite else ()
