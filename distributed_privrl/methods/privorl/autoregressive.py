"""PrivORL with an autoregressive model: a release of independent transitions.

Rounds, curiosity and what is charged are those of PrivORL, algorithm 1. The model is not the
paper's diffusion but a product of binned factors, one for each variable of a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.methods.privorl.binning import foreseen_bins, public_bins, row_bins
from distributed_privrl.methods.privorl.config import PrivorlArConfig
from distributed_privrl.methods.privorl.marginal_rows import MarginalRows, MarginalTransitions
from distributed_privrl.methods.privorl.method import PrivorlMethod, check_public_parts
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.transitions import TransitionRows, released_rows
from distributed_privrl.methods.privorl.weights import SMALLER_FACTORS, binned_weights
from distributed_privrl.models.chunks import chunk_count

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from torch import Tensor, nn

    from distributed_privrl.core.random import Streams
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.methods.privorl.model_config import AutoregressiveConfig
    from distributed_privrl.methods.privorl.sampling_config import DrawingConfig
    from distributed_privrl.models.autoregressive import AutoregressiveNetwork
    from distributed_privrl.models.row_bins import RowBins


class LikelihoodLoss:
    """The negative log-likelihood of each row, in nats; nothing is drawn for it."""

    draw_count = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses ``(M,)`` of rows ``(M, D)``; ``draws`` is ``(M, 0)``."""
        losses: Tensor = module(rows).sum(dim=-1)
        return losses


@dataclass(frozen=True, kw_only=True)
class AutoregressiveSynthesizer:
    """The autoregressive model of rows; see `update.Synthesizer`.

    Args:
        model: its configuration.
        bins: the variables of a row.
    """

    model: AutoregressiveConfig
    bins: RowBins

    @property
    def row_width(self) -> int:
        """Numbers in a row (D)."""
        return self.bins.width

    @property
    def public_parts(self) -> tuple[str, ...]:
        """Parts whose networks public data alone teach."""
        return self.model.public_parts

    @property
    def weights(self) -> int:
        """How many numbers rounds learn."""
        return binned_weights(self.model, self.bins)

    @property
    def row_loss(self) -> LikelihoodLoss:
        """The negative log-likelihood."""
        return LikelihoodLoss()

    def build(self, seed: int) -> AutoregressiveNetwork:
        """Return a fresh network."""
        from distributed_privrl.methods.privorl.update import initial_weights
        from distributed_privrl.models.autoregressive import AutoregressiveNetwork

        return AutoregressiveNetwork(
            self.bins,
            hidden=self.model.hidden,
            column_frequencies=self.model.column_frequencies,
            generator=initial_weights(seed),
        )

    def draft(
        self, network: nn.Module, given: Tensor, *, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Return samples, as many as ``given`` has rows; they are cheap, whatever ``steps`` is."""
        return autoregressive(network).draw(len(given), generator=generator)


def autoregressive(network: nn.Module) -> AutoregressiveNetwork:
    """Return ``network`` as what it must be to be drawn from."""
    from distributed_privrl.models.autoregressive import AutoregressiveNetwork

    if not isinstance(network, AutoregressiveNetwork):
        raise TypeError(f"rows are drawn from an AutoregressiveNetwork, not {type(network)}")
    return network


@dataclass(frozen=True, kw_only=True)
class AutoregressiveDrawer:
    """Draws independent rows; see `release.ChunkDrawer`.

    Args:
        rows: of all chunks together.
        config: of the drawing.
    """

    rows: int
    config: DrawingConfig

    @property
    def count(self) -> int:
        """The number of chunks."""
        return chunk_count(rows=self.rows, chunk_rows=self.config.chunk_rows)

    def draw(self, network: nn.Module, index: int, *, streams: Streams, device: str) -> Tensor:
        """Return the rows of chunk ``index``."""
        import torch

        generator = torch.Generator(device).manual_seed(streams.integer(f"chunk/{index}"))
        size = self.config.chunk_rows
        rows = min(size, self.rows - index * size)
        return autoregressive(network).draw(rows, generator=generator, floor=self.config.floor)


class AutoregressiveMethod(PrivorlMethod):
    """PrivORL with the autoregressive model.

    Privacy: as `PrivorlMethod`; a row's vector is the gradient of its log-likelihood, clipped once.
    """

    config: PrivorlArConfig

    def check_config(self) -> None:
        """Refuse settings that do not fit together."""
        super().check_config()
        check_public_parts(self.config.model.public_parts, self.config.training.pretraining)

    smaller = SMALLER_FACTORS

    @property
    def uses(self) -> tuple[float, float]:
        """Once by a row, and by each drawn one."""
        return 1.0, float(self.config.output.size)

    def weights_of(self, encoder: TransitionEncoder) -> int:
        """Return about how many numbers rounds learn; see `PrivorlMethod.weights_of`."""
        model = self.config.model
        return binned_weights(model, foreseen_bins(encoder, model.bins))

    @property
    def marginal_rows(self) -> MarginalRows | None:
        """Independent transitions, if pre-training is on what the run releases."""
        pretraining = self.config.training.pretraining
        if not pretraining.from_marginals:
            return None
        return MarginalTransitions(self.config, pretraining.marginals)

    def informed(self, parts: Parts, rows: NDArray[np.float32]) -> Parts:
        """Return the parts with half of the bins where drawn rows lie, as public rows place them.

        Privacy: post-processing of released marginals.
        """
        assert isinstance(parts.synthesizer, AutoregressiveSynthesizer)
        encoder = TransitionEncoder.from_json(parts.rows.encoder)
        bins = row_bins(encoder, rows, count=self.config.model.bins, declared=True)
        return replace(parts, synthesizer=replace(parts.synthesizer, bins=bins))

    def parts(self, store: DatasetStore, encoder: TransitionEncoder) -> Parts:
        """Return the autoregressive model of rows, and what draws them."""
        config = self.config
        bins = public_bins(config.data, store, encoder, count=config.model.bins)
        return Parts(
            rows=TransitionRows(encoder=encoder.to_json()),
            synthesizer=AutoregressiveSynthesizer(model=config.model, bins=bins),
            drawer=AutoregressiveDrawer(rows=config.output.size, config=config.training.sampling),
            release=partial(released_rows, encoder),
        )
