"""An autoregressive model of rows: each variable's category, given the columns before it."""

from collections.abc import Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.layers import Waves, mlp
from distributed_privrl.models.row_bins import RowBins, drawn_categories

_SMALL_OUTPUT = 0.1


class AutoregressiveNetwork(nn.Module):
    """An MLP for each variable of a row, shown the columns before it.

    The likelihood of a row is the product of its variables' probabilities, so one pass gives the
    exact loss, and one pass a variable draws a row. Only ``nn.Linear`` layers hold parameters and
    each runs once a forward pass, so that per-row gradient norms can be read off their inputs.

    Args:
        bins: the variables.
        hidden: widths of each MLP's hidden layers.
        column_frequencies: sines and cosines of each column, beside the column; see `Waves`.
        context: numbers that all networks are shown beside the columns (C).
        generator: source of the initial weights.

    Attributes:
        fixed: variables whose networks are not trained any more; see `fix`.

    Raises:
        ConfigError: a width is not positive.

    Reference: Uria et al., "Neural autoregressive distribution estimation" (2016); the factors are
    binned as in van den Oord et al., "Pixel recurrent neural networks" (2016).
    """

    def __init__(
        self,
        bins: RowBins,
        *,
        hidden: Sequence[int],
        column_frequencies: int,
        context: int = 0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        for width in hidden:
            check_positive("hidden", width)
        self.bins = bins
        self.waves = Waves(column_frequencies)
        self.parts = nn.ModuleList(
            _factor(max(1, self.waves.width(one.start) + context), hidden, one.size, generator)
            for one in bins.variables
        )
        self.fixed: frozenset[int] = frozenset()

    def fix(self, parts: Collection[str]) -> None:
        """Take the networks of some parts of a row out of training; they stay what they are.

        Raises:
            ConfigError: nothing would be left to train.
        """
        variables = enumerate(self.bins.variables)
        self.fixed = frozenset(index for index, one in variables if one.part in parts)
        if len(self.fixed) == len(self.parts):
            raise ConfigError(f"parts {sorted(parts)} are all of a row: nothing is left to learn")
        for index in self.fixed:
            self.parts[index].requires_grad_(False)

    def forward(self, rows: Tensor, context: Tensor | None = None) -> Tensor:
        """Return the negative log-likelihood of each variable's category ``(..., V)``, in nats.

        Those of fixed variables count as zero: no round learns by them, nor can an audit.

        Args:
            rows: ``(..., D)``.
            context: ``(..., C)``, about -1 to 1; None where networks are shown none.
        """
        shown, categories = self.bins.inputs(rows), self.bins.categories(rows)
        losses = [
            rows.new_zeros(rows.shape[:-1])
            if index in self.fixed
            else F.cross_entropy(
                self._logits(index, shown, context).movedim(-1, 1),
                categories[..., index],
                reduction="none",
            )
            for index in range(len(self.bins.variables))
        ]
        return torch.stack(losses, dim=-1)

    def draw(
        self,
        rows: int,
        *,
        generator: torch.Generator,
        floor: float = 0.0,
        context: Tensor | None = None,
        given: Tensor | None = None,
    ) -> Tensor:
        """Return rows ``(M, D)``, one variable after the other, on the generator's device.

        Args:
            rows: M.
            generator: source of the rows.
            floor: of ``floored`` variables; see `drawn_categories`.
            context: ``(M, C)``; see `forward`.
            given: the first columns ``(M, G)``, whole variables, that are not drawn.
        """
        device = generator.device
        drawn = torch.zeros(rows, self.bins.width, device=device)
        first = 0 if given is None else given.shape[1]
        if given is not None:
            drawn[:, :first] = given
        with torch.inference_mode():
            for index, one in enumerate(self.bins.variables):
                if one.start < first:
                    continue
                uniforms = torch.rand(2, rows, generator=generator, device=device)
                logits = self._logits(index, self.bins.inputs(drawn), context)
                chosen = drawn_categories(logits, uniforms[0], floor=floor * one.floored)
                columns = self.bins.columns(index, chosen, uniforms[1])
                drawn[:, one.start : one.stop] = columns
        return drawn

    def _logits(self, index: int, shown: Tensor, context: Tensor | None = None) -> Tensor:
        start = self.bins.variables[index].start
        parts = [] if context is None else [context]
        if start:
            parts.append(self.waves(shown[..., :start]))
        seen = torch.cat(parts, dim=-1) if parts else torch.ones_like(shown[..., :1])
        logits: Tensor = self.parts[index](seen)
        return logits


def _factor(
    inputs: int, hidden: Sequence[int], outputs: int, generator: torch.Generator
) -> nn.Sequential:
    """Return an MLP whose first outputs are nearly equal."""
    network = mlp((inputs, *hidden, outputs), generator)
    last = network[-1]
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.mul_(_SMALL_OUTPUT)
        last.bias.zero_()
    return network
