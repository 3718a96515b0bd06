"""An autoregressive model of rows: each variable's category, given the columns before it."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.models.layers import Waves, mlp
from distributed_privrl.models.row_bins import RowBins

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
        generator: source of the initial weights.

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
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        for width in hidden:
            check_positive("hidden", width)
        self.bins = bins
        self.waves = Waves(column_frequencies)
        self.parts = nn.ModuleList(
            _factor(max(1, self.waves.width(one.start)), hidden, one.size, generator)
            for one in bins.variables
        )

    def forward(self, rows: Tensor) -> Tensor:
        """Return the negative log-likelihood of each row's categories ``(M,)``, in nats.

        Args:
            rows: ``(M, D)``.
        """
        shown, categories = self.bins.inputs(rows), self.bins.categories(rows)
        losses = [
            F.cross_entropy(self._logits(index, shown), categories[:, index], reduction="none")
            for index in range(len(self.bins.variables))
        ]
        return torch.stack(losses).sum(dim=0)

    def draw(self, rows: int, *, generator: torch.Generator) -> Tensor:
        """Return rows ``(M, D)``, one variable after the other, on the generator's device."""
        device = generator.device
        drawn = torch.zeros(rows, self.bins.width, device=device)
        with torch.inference_mode():
            for index, one in enumerate(self.bins.variables):
                shown = self.bins.inputs(drawn)
                uniforms = torch.rand(2, rows, generator=generator, device=device)
                totals = self._logits(index, shown).double().softmax(dim=1).cumsum(dim=1)
                chosen = torch.searchsorted(totals, uniforms[0].double().unsqueeze(1)).squeeze(1)
                chosen = chosen.clamp(max=one.size - 1)
                columns = self.bins.columns(index, chosen, uniforms[1])
                drawn[:, one.start : one.stop] = columns
        return drawn

    def _logits(self, index: int, shown: Tensor) -> Tensor:
        start = self.bins.variables[index].start
        before = self.waves(shown[:, :start]) if start else torch.ones_like(shown[:, :1])
        logits: Tensor = self.parts[index](before)
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
