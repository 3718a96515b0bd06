"""Public feature maps of finite problems, in blocks whose features never meet."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.data.bombs import check_holes

_ROUNDING = 1e-9
"""A norm may lie this far above 1 and is then scaled down; anything longer is refused."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureMap:
    """phi(s, a) with |phi(s, a)| <= 1, a public fact of a problem with Discrete spaces.

    With ``actions=None`` the table gives phi itself: one block of width d. With a number of
    actions, the table gives psi(s) and phi(s, a) = e_a (x) psi(s): a block of width k for each
    action, so that every Gram matrix is block diagonal, whatever the data are.

    Args:
        table: ``(S, A, d)`` phi, or ``(S, k)`` psi; becomes a read-only float64 copy.
        actions: number of actions A, with psi alone.

    Raises:
        ConfigError: another shape, a number that is not finite, or a row longer than 1.

    Example:
        >>> FeatureMap(table=np.eye(3), actions=2).dimension
        6
    """

    table: NDArray[np.float64]
    actions: int | None = None

    def __post_init__(self) -> None:
        table = np.array(self.table, dtype=np.float64)
        if table.ndim != (3 if self.actions is None else 2) or table.size == 0:
            raise ConfigError(
                "table must be (S, A, d), or (S, k) with a number of actions, got shape"
                f" {table.shape} and actions={self.actions}"
            )
        if self.actions is not None and self.actions < 1:
            raise ConfigError(f"actions must be at least 1, got {self.actions}")
        if not np.isfinite(table).all():
            raise ConfigError("table must be finite, got NaN or infinity")
        longest = float(np.linalg.norm(table, axis=-1).max())
        if longest > 1 + _ROUNDING:
            raise ConfigError(
                f"features must have L2 norms <= 1, got {longest:.9g}: divide the table by its"
                " largest norm"
            )
        if longest > 1:
            table *= (1 - 2.0**-40) / longest
        table.flags.writeable = False
        object.__setattr__(self, "table", table)

    @property
    def shape(self) -> tuple[int, int]:
        """The numbers of states and actions, (S, A)."""
        return len(self.table), self.actions or self.table.shape[1]

    @property
    def blocks(self) -> int:
        """The number B of blocks."""
        return self.actions or 1

    @property
    def width(self) -> int:
        """The width k of a block."""
        return int(self.table.shape[-1])

    @property
    def dimension(self) -> int:
        """The dimension d = B k of phi."""
        return self.blocks * self.width

    @property
    def gram_size(self) -> int:
        """Numbers that a Gram matrix consists of, B k (k + 1) / 2."""
        return self.blocks * self.width * (self.width + 1) // 2

    def block_of(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the block of each pair, (N,); a pair is state A + action."""
        return pairs % self.actions if self.actions is not None else np.zeros_like(pairs)

    def vectors(self, pairs: NDArray[np.int64]) -> NDArray[np.float64]:
        """Return what each pair has in its block, (N, k); a pair is state A + action."""
        return self._rows()[pairs // self.actions if self.actions is not None else pairs]

    def gram(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the diagonal blocks of sum of weights[s, a] phi(s, a) phi(s, a)^T, (B, k, k).

        Args:
            weights: ``(S, A)``.
        """
        if self.actions is not None:
            return np.asarray(np.matmul(self.table.T * weights.T[:, None, :], self.table))
        used = np.flatnonzero(weights)
        rows = self._rows()[used]
        return np.asarray((rows.T * weights.reshape(-1)[used]) @ rows)[None]

    def predict(self, parameters: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return <phi(s, a), parameters>, (S, A).

        Args:
            parameters: ``(B, k)``.
        """
        if self.actions is not None:
            return np.asarray(self.table @ parameters.T)
        return np.asarray(self.table @ parameters[0])

    def quadratic(self, matrices: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return phi(s, a)^T M phi(s, a), (S, A).

        Args:
            matrices: ``(B, k, k)``, the diagonal blocks of M.
        """
        if self.actions is not None:
            return np.asarray((np.matmul(self.table, matrices) * self.table).sum(axis=-1).T)
        return np.asarray(((self.table @ matrices[0]) * self.table).sum(axis=-1))

    def save(self, path: Path) -> None:
        """Write the map as a safetensors file.

        Raises:
            StorageError: the folder cannot be written.
        """
        write_atomically(path, save({"table": self.table}, {"actions": json.dumps(self.actions)}))

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read a map that `save` wrote.

        Raises:
            ConfigError: it is no feature map.
            StorageError: the file cannot be read.
        """
        try:
            with storage_errors(f"read {path}"):
                check_holes(path)
            with storage_errors(f"read {path}"), safe_open(path, framework="np") as file:
                return cls(
                    table=file.get_tensor("table"), actions=json.loads(file.metadata()["actions"])
                )
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise StorageError(f"{path} holds no feature map: {error}") from error

    def _rows(self) -> NDArray[np.float64]:
        return self.table.reshape(-1, self.width)
