"""Steps as tokens: an observation and the rest of a step, a bin or category each.

Reference: PrivORL, appendix E, DP-Transformer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.models.row_bins import RowBins, Variable, category_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def step_variables(bins: RowBins) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
    """Return the variables of an observation, and those of the rest of a step.

    What a step leads to is the next observation: it has the same variables.

    Args:
        bins: the variables of a step.
    """
    own = [one for one in bins.variables if one.part != "next_observation"]
    observation = tuple(one for one in own if one.part == "observation")
    return observation, tuple(own[len(observation) :])


@dataclass(frozen=True, kw_only=True)
class StepTokens:
    """Steps as categories, and back; picklable, public facts alone.

    Args:
        bins: the variables of a step.
        width: numbers of an encoded observation.
        place: where the next observation begins in a step.
        gain: of each number of a next observation, to be one of an observation.
        shift: is then added.
    """

    bins: RowBins
    width: int
    place: int
    gain: tuple[float, ...]
    shift: tuple[float, ...]

    @classmethod
    def of(cls, encoder: FragmentEncoder, bins: RowBins) -> StepTokens:
        """Return those of an encoder's steps.

        Args:
            encoder: codes a next observation as it is; each part has a scaling of its own.
            bins: the variables of a step.
        """
        layout, scaling = encoder.transitions.layout, encoder.transitions.scaling
        now, after = (layout.blocks[name] for name in ("observation", "next_observation"))
        gain = scaling.scale[after] / scaling.scale[now]
        shift = (scaling.offset[after] - scaling.offset[now]) / scaling.scale[now]
        return cls(
            bins=bins,
            width=now.stop - now.start,
            place=after.start,
            gain=tuple(gain.tolist()),
            shift=tuple(shift.tolist()),
        )

    @cached_property
    def variables(self) -> tuple[tuple[Variable, ...], tuple[Variable, ...]]:
        """Those of an observation, and those of the rest of a step."""
        return step_variables(self.bins)

    def reached(self, steps: Tensor) -> Tensor:
        """Return where steps ``(..., S)`` led to, encoded as an observation ``(..., W)``."""
        after = steps[..., self.place : self.place + self.width]
        return after * steps.new_tensor(self.gain) + steps.new_tensor(self.shift)

    def observed(self, observations: Tensor) -> Tensor:
        """Return the categories ``(..., O)`` of encoded observations ``(..., W)``."""
        return _categories(self.variables[0], observations)

    def others(self, steps: Tensor) -> Tensor:
        """Return the categories ``(..., P - O)`` of the rest of steps ``(..., S)``."""
        return _categories(self.variables[1], steps)

    def steps(self, drawn: Tensor, begun: Tensor | None, generator: torch.Generator) -> Tensor:
        """Return the encoded steps ``(N, H, S)`` of drawn tokens.

        Args:
            drawn: categories ``(N, L)``, as `TokenTransformer.draw` returns them.
            begun: the first observation ``(N, W)``, which is kept as it is; None: it was drawn.
            generator: source of the places of numbers in their bins.
        """
        import torch

        seen, rest = self.variables
        size = len(seen) + len(rest)
        rows, horizon = len(drawn), drawn.shape[1] // size
        step = drawn[:, : horizon * size].reshape(rows, horizon, size)
        last = drawn[:, None, horizon * size :]
        observed = torch.cat((step[..., : len(seen)], last), dim=1)
        observations = torch.cat(
            [self._columns(one, observed[..., i], generator) for i, one in enumerate(seen)], dim=-1
        )
        if begun is not None:
            observations[:, 0] = begun
        steps = torch.zeros(rows, horizon, self.bins.width, device=drawn.device)
        steps[..., : self.width] = observations[:, :-1]
        after = (observations[:, 1:] - steps.new_tensor(self.shift)) / steps.new_tensor(self.gain)
        steps[..., self.place : self.place + self.width] = after
        for index, one in enumerate(rest, start=len(seen)):
            steps[..., one.start : one.stop] = self._columns(one, step[..., index], generator)
        return steps

    def _columns(self, one: Variable, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Return the columns ``(..., C)`` of categories ``(...)``, numbers somewhere in a bin."""
        import torch

        uniforms = torch.rand(chosen.shape, generator=generator, device=chosen.device)
        columns = self.bins.columns(
            self.bins.variables.index(one), chosen.reshape(-1), uniforms.reshape(-1)
        )
        return columns.reshape(*chosen.shape, -1)


def _categories(variables: Sequence[Variable], rows: Tensor) -> Tensor:
    import torch

    return torch.stack([category_of(one, rows) for one in variables], dim=-1)
