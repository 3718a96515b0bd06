"""Transitions kept for learning: a ring in memory that is taken once and written in place."""

import torch
from torch import Tensor

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError


class ReplayBuffer:
    """The latest packed rows, see `training.packed_rows`; the oldest give way.

    Args:
        capacity: rows kept.
        width: numbers of a row (R).
        device: where rows are kept.

    Raises:
        ConfigError: a size is not positive.
    """

    def __init__(self, capacity: int, width: int, *, device: str = "cpu") -> None:
        check_positive("capacity", capacity)
        check_positive("width", width)
        self._rows = torch.zeros(capacity, width, device=device)
        self._position = 0
        self.size = 0
        """Rows held."""

    def add(self, rows: Tensor) -> None:
        """Keep ``rows`` ``(M, R)``, M at most the capacity.

        Raises:
            ConfigError: more rows than the buffer holds.
        """
        capacity = len(self._rows)
        if len(rows) > capacity:
            raise ConfigError(f"{len(rows)} rows at once do not fit: raise capacity={capacity}")
        first = min(len(rows), capacity - self._position)
        self._rows[self._position : self._position + first] = rows[:first]
        self._rows[: len(rows) - first] = rows[first:]
        self._position = (self._position + len(rows)) % capacity
        self.size = min(self.size + len(rows), capacity)

    def sample(self, count: int, generator: torch.Generator) -> Tensor:
        """Return ``(count, R)`` rows drawn with replacement."""
        return sampled_rows(self._rows[: self.size], count, generator)

    def state(self) -> dict[str, Tensor]:
        """Return what `restore` needs: copies of the rows held, and where the next one goes."""
        return {
            "rows": self._rows[: self.size].clone(),
            "position": torch.tensor(self._position),
        }

    def restore(self, state: dict[str, Tensor]) -> None:
        """Take up ``state`` of a buffer of the same size.

        Raises:
            ConfigError: it does not fit.
        """
        rows = state["rows"]
        if rows.shape[1:] != self._rows.shape[1:] or len(rows) > len(self._rows):
            raise ConfigError(
                f"rows {tuple(rows.shape)} do not fit into a buffer of {tuple(self._rows.shape)}"
            )
        self.size, self._position = len(rows), int(state["position"])
        self._rows[: self.size] = rows


def sampled_rows(rows: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return ``(count, R)`` of ``rows`` ``(N, R)``, drawn with replacement, on their device."""
    drawn = torch.randint(len(rows), (count,), generator=generator)
    return rows.index_select(0, drawn.to(rows.device))
