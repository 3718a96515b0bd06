"""Raw transitions to standardised float32 rows and back."""

import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.action_levels import ActionLevels
from distributed_privrl.data.layout import PLAIN, RowCoding, RowLayout
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.data.spaces import (
    Space,
    box_bounds,
    space_from_json,
    space_to_json,
    supported_space,
)
from distributed_privrl.data.trajectories import Transitions

_LARGEST = 1000.0


@dataclass(frozen=True, kw_only=True, eq=False)
class EncodedRows:
    """Standardised rows, and which of them came from proper transitions.

    Args:
        rows: (N, D) float32; zeros where not valid.
        valid: (N,) bool.
    """

    rows: NDArray[np.float32]
    valid: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class TransitionEncoder:
    """Maps transitions to rows (observation, action, reward, next observation, terminal bit).

    Args:
        observation_space: Box (flattened), or Discrete or MultiDiscrete (each component one-hot
            in, largest column out).
        action_space: as ``observation_space``.
        scaling: (D,) offset and scale from public facts; one-hot and terminal columns are
            expected at -1 and 1.
        coding: of next observations, rewards and actions, from public facts.
        levels: of recorded Box actions, whose combinations are ``action_space``; see `with_levels`.

    Raises:
        ConfigError: an unsupported space, or a scaling of another width.
    """

    observation_space: Space
    action_space: Space
    scaling: Scaling
    coding: RowCoding = PLAIN
    levels: ActionLevels | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "observation_space", self.layout.observation_space)
        object.__setattr__(self, "action_space", self.layout.action_space)
        if len(self.scaling.offset) != self.width:
            raise ConfigError(
                f"scaling has {len(self.scaling.offset)} columns, the rows have {self.width}"
            )

    @cached_property
    def layout(self) -> RowLayout:
        """Which column holds what."""
        return RowLayout(self.observation_space, self.action_space, self.coding)

    @property
    def width(self) -> int:
        """The number D of columns."""
        return self.layout.width

    @property
    def column_names(self) -> tuple[str, ...]:
        """The name of each column."""
        return self.layout.column_names

    def with_levels(self, levels: ActionLevels) -> "TransitionEncoder":
        """Return an encoder that takes each Box action as its nearest level, one-hot."""
        actions = self.layout.blocks["action"]
        sides = (
            np.concatenate(
                [side[: actions.start], np.full(levels.count, 0.5), side[actions.stop :]]
            )
            for side in (self.scaling.offset, self.scaling.scale)
        )
        return TransitionEncoder(
            self.observation_space, levels.space, Scaling(*sides), self.coding, levels
        )

    def encode(self, transitions: Transitions) -> EncodedRows:
        """Return standardised rows; never fails, warns or logs because of what a row holds.

        Args:
            transitions: N transitions of the encoder's spaces; with levels, of Box actions.

        Returns:
            rows (N, D) and valid (N,). A row with a value that is not finite, a category outside
            its space, or a standardised value beyond 1000 becomes zeros, and is not valid.

        Raises:
            ConfigError: the columns do not have the form of the spaces (a public fact).

        Privacy:
            Row i of the result depends on transition i alone, so that one unit's rows change no
            other unit's; nothing is released.
        """
        encoded = np.zeros((len(transitions), self.width), dtype=np.float32)
        valid = np.zeros(len(transitions), dtype=bool)
        for part in self.layout.slices(len(transitions)):
            chosen = transitions.select(part)
            if self.levels is not None:
                chosen = replace(chosen, actions=self.levels.cells(chosen.actions))
            raw, proper = self.layout.to_rows(chosen)
            with np.errstate(all="ignore"):
                rows = (raw - self.scaling.offset) / self.scaling.scale
                proper &= (np.abs(rows) <= _LARGEST).all(axis=1)
            rows[~proper] = 0.0
            encoded[part], valid[part] = rows, proper
        return EncodedRows(rows=encoded, valid=valid)

    def decode(self, rows: NDArray[np.floating[Any]]) -> Transitions:
        """Return the transitions in standardised ``rows``, clipped to the finite Box bounds.

        The inverse of `encode` on valid rows: categories, reward levels, clipped actions and the
        terminal bit exactly, numbers up to the one rounding of the row to float32. ``truncated``
        is False, and each row is a unit.

        Args:
            rows: (N, D).

        Raises:
            ConfigError: rows of another width.
        """
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise ConfigError(f"rows must be (N, {self.width}), got {rows.shape}")
        raw = rows.astype(np.float64) * self.scaling.scale + self.scaling.offset
        decoded = self.layout.from_rows(raw)
        actions = _clip(decoded.actions, self.action_space)
        return replace(
            decoded,
            observations=_clip(decoded.observations, self.observation_space),
            actions=actions if self.levels is None else self.levels.values(actions),
            next_observations=_clip(decoded.next_observations, self.observation_space),
        )

    def to_json(self) -> str:
        """Return the encoder as JSON, every number exact."""
        return json.dumps(
            {
                "observation_space": space_to_json(self.observation_space),
                "action_space": space_to_json(self.action_space),
                "offset": self.scaling.offset.tolist(),
                "scale": self.scaling.scale.tolist(),
                "coding": asdict(self.coding),
                **({} if self.levels is None else {"levels": self.levels.levels}),
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "TransitionEncoder":
        """Return the encoder that `to_json` wrote.

        Raises:
            ConfigError: something else.
        """
        try:
            value = json.loads(text)
            scaling = Scaling(offset=value["offset"], scale=value["scale"])
            spaces = [
                supported_space(name, space_from_json(value[name]))
                for name in ("observation_space", "action_space")
            ]
            asked = value.get("levels")
            levels = None if asked is None else ActionLevels(tuple(map(tuple, asked)))
            return cls(spaces[0], spaces[1], scaling, RowCoding(**value["coding"]), levels)
        except (ValueError, KeyError, TypeError) as error:
            raise ConfigError(f"text is no encoder as written by to_json: {error}") from error


def _clip(part: NDArray[Any], space: Space) -> NDArray[Any]:
    return np.clip(part, *box_bounds(space)) if isinstance(space, Box) else part
