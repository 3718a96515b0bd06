"""Rows as a few categories for each variable: bins of numbers, levels, one-hot components.

Plans count the variables of a row, and so torch is imported where tensors are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from distributed_privrl.core.errors import ConfigError

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["number", "level", "one_hot"]


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A variable of a row and the categories that it takes.

    Args:
        start: its first column.
        kind: ``number``: one column, cut into bins; ``level``: one column of few values;
            ``one_hot``: a column for each category, 1 at the chosen one and -1 elsewhere.
        marks: rising edges of the bins ``(K + 1,)``, the levels ``(K,)``, or for ``one_hot`` the
            numbers of the categories ``(K,)``.
        floored: whether a floor of the drawing leaves out its unlikely categories.
        part: of the row that it belongs to, e.g. ``action``.

    Raises:
        ConfigError: fewer than one category, or marks that do not rise.
    """

    start: int
    kind: Kind
    marks: tuple[float, ...]
    floored: bool = False
    part: str = ""

    def __post_init__(self) -> None:
        rising = all(low < high for low, high in zip(self.marks, self.marks[1:], strict=False))
        if self.size < 1 or not rising:
            raise ConfigError(f"column {self.start}: marks must rise, got {self.marks}")

    @property
    def size(self) -> int:
        """The number K of categories."""
        return len(self.marks) - (self.kind == "number")

    @property
    def stop(self) -> int:
        """The column after its last one."""
        return self.start + (self.size if self.kind == "one_hot" else 1)


@dataclass(frozen=True)
class RowBins:
    """All variables of a row, in the order of their columns; picklable, public facts alone.

    Args:
        variables: side by side, from column 0 on.

    Raises:
        ConfigError: a column is left out or taken twice.
    """

    variables: tuple[Variable, ...]

    def __post_init__(self) -> None:
        stops = [0, *(variable.stop for variable in self.variables)]
        starts = [variable.start for variable in self.variables]
        if not starts or starts != stops[:-1]:
            raise ConfigError("the variables of a row must lie side by side, from column 0 on")

    @property
    def width(self) -> int:
        """Numbers in a row (D)."""
        return self.variables[-1].stop

    def categories(self, rows: Tensor) -> Tensor:
        """Return each variable's category ``(..., V)`` in rows ``(..., D)``.

        A number outside its bins is in the nearest one, a level is the nearest.
        """
        import torch

        return torch.stack([category_of(one, rows) for one in self.variables], dim=-1)

    def inputs(self, rows: Tensor) -> Tensor:
        """Return what networks are shown of ``rows`` ``(..., D)``: numbers from -1 to 1."""
        low, high = self._ranges(rows)
        return (2 * (rows - low) / (high - low) - 1).clamp(-1, 1)

    def _ranges(self, like: Tensor) -> tuple[Tensor, Tensor]:
        import torch

        low, high = -torch.ones(self.width), torch.ones(self.width)
        for one in self.variables:
            if one.kind == "number":
                low[one.start], high[one.start] = one.marks[0], one.marks[-1]
        return low.to(like), high.to(like)

    def columns(self, index: int, chosen: Tensor, uniforms: Tensor) -> Tensor:
        """Return the columns ``(M, C)`` of variable ``index``.

        Args:
            index: of the variable.
            chosen: its categories ``(M,)``.
            uniforms: where in its bin each number lies, ``(M,)`` in [0, 1).
        """
        import torch

        one = self.variables[index]
        if one.kind == "one_hot":
            hot = torch.nn.functional.one_hot(chosen, one.size)
            return (2 * hot - 1).to(uniforms.dtype)
        marks = torch.tensor(one.marks, dtype=uniforms.dtype, device=uniforms.device)
        if one.kind == "level":
            return marks[chosen].unsqueeze(1)
        low, high = marks[chosen], marks[chosen + 1]
        return (low + uniforms * (high - low)).unsqueeze(1)


def category_of(variable: Variable, rows: Tensor) -> Tensor:
    """Return a variable's category ``(...)`` in rows ``(..., D)``; see `RowBins.categories`."""
    if variable.kind == "one_hot":
        return rows[..., variable.start : variable.stop].argmax(dim=-1)
    import torch

    marks = torch.tensor(variable.marks, dtype=rows.dtype, device=rows.device)
    inner = marks[1:-1] if variable.kind == "number" else (marks[1:] + marks[:-1]) / 2
    return torch.bucketize(rows[..., variable.start].contiguous(), inner, right=True)


def drawn_categories(logits: Tensor, uniforms: Tensor, *, floor: float) -> Tensor:
    """Return a category for each row ``(M,)``.

    Args:
        logits: ``(M, K)``.
        uniforms: what chooses, ``(M,)`` in [0, 1).
        floor: categories that are less likely than this share of the likeliest are not drawn:
            what noise and initial weights leave where nothing was learned.
    """
    import torch

    weights = logits.double().softmax(dim=1)
    if floor:
        weights = weights * (weights >= floor * weights.amax(dim=1, keepdim=True))
    totals = weights.cumsum(dim=1)
    below = uniforms.double().unsqueeze(1) * totals[:, -1:]
    chosen = torch.searchsorted(totals, below, right=True).squeeze(1)
    return chosen.clamp(max=logits.shape[1] - 1)
