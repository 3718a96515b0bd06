"""DP-Transformer: trajectories as tokens, from a causal transformer.

The path is that of PrivORL, algorithm 2 (fragments of whole trajectories, one vector a unit); the
model is the baseline that the paper compares with. A fragment begins where the step before it led
to, so that steps join exactly.

A run makes it before its budget is held: what builds networks or draws from them imports torch.

Reference: PrivORL, appendix E, DP-Transformer.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

from distributed_privrl.data.fragments import END_BITS
from distributed_privrl.methods.privorl.fragment_coding import CodedFragments
from distributed_privrl.methods.privorl.model_config import TokenModelConfig
from distributed_privrl.methods.privorl.sampling_config import FlooredRolloutConfig
from distributed_privrl.methods.privorl.step_tokens import StepTokens, step_variables
from distributed_privrl.methods.privorl.stitching import chained_steps
from distributed_privrl.models.chunks import chunk_count
from distributed_privrl.models.row_bins import RowBins
from distributed_privrl.models.sizes import token_weights

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from distributed_privrl.core.random import Streams
    from distributed_privrl.methods.privorl.token_loss import TokenLoss
    from distributed_privrl.models.token_transformer import TokenTransformer


def network_weights(model: TokenModelConfig, bins: RowBins) -> int:
    """Return how many numbers rounds learn.

    Args:
        model: its configuration.
        bins: the variables of a step.
    """
    observation, others = step_variables(bins)
    return token_weights(
        (*observation, *others),
        width=model.width,
        depth=model.depth,
        column_frequencies=model.column_frequencies,
    )


@dataclass(frozen=True, kw_only=True)
class TokenSynthesizer(CodedFragments):
    """Fragments of H steps as tokens; see `update.Synthesizer`.

    Args:
        model: its configuration.
        bins: the variables of a step.
    """

    model: TokenModelConfig
    bins: RowBins

    @cached_property
    def tokens(self) -> StepTokens:
        """Makes categories of steps."""
        return StepTokens.of(self.fragments, self.bins)

    @property
    def weights(self) -> int:
        """How many numbers rounds learn."""
        return network_weights(self.model, self.bins)

    @property
    def row_loss(self) -> TokenLoss:
        """The negative log-likelihood."""
        from distributed_privrl.methods.privorl.token_loss import TokenLoss

        return TokenLoss(
            layout=self.fragments.layout,
            tokens=self.tokens,
            first_weight=self.model.first_weight,
        )

    def build(self, seed: int) -> TokenTransformer:
        """Return a fresh network.

        Raises:
            ConfigError: the heads do not divide the width.
        """
        from distributed_privrl.methods.privorl.update import initial_weights
        from distributed_privrl.models.token_transformer import TokenTransformer

        model = self.model
        return TokenTransformer(
            *self.tokens.variables,
            horizon=model.horizon,
            width=model.width,
            depth=model.depth,
            heads=model.heads,
            column_frequencies=model.column_frequencies,
            generator=initial_weights(seed),
        )

    def draft(
        self, network: nn.Module, given: Tensor, *, steps: int, generator: torch.Generator
    ) -> Tensor:
        """Return samples after the linking steps of the fragments in ``given``.

        They are cheap, whatever ``steps`` is.
        """
        import torch

        condition, _, mask = self.fragments.layout.split(given)
        drawn = self.follow(network, condition, generator=generator)
        return torch.cat((condition, drawn.flatten(1), torch.ones_like(mask)), dim=1)

    def follow(
        self,
        network: nn.Module,
        condition: Tensor,
        *,
        generator: torch.Generator,
        floor: float = 0.0,
    ) -> Tensor:
        """Return fragments ``(N, H, S)`` that follow linking steps.

        Args:
            network: as built, with the trained parameters.
            condition: linking steps ``(N, S)``, zeros where an episode begins.
            generator: public, on the network's device.
            floor: see `drawn_categories`.
        """
        import torch

        from distributed_privrl.methods.privorl.token_loss import fragment_start
        from distributed_privrl.models.token_transformer import TokenTransformer

        if not isinstance(network, TokenTransformer):
            raise TypeError(f"tokens are drawn from a TokenTransformer, not {type(network)}")
        condition = condition.to(generator.device)
        linked, start = fragment_start(condition)
        made = condition.new_zeros(len(condition), self.model.horizon, condition.shape[1])
        for chosen, follows in ((linked, True), (~linked, False)):
            places = torch.nonzero(chosen)[:, 0]
            if not len(places):
                continue
            begun = self.tokens.reached(condition[places]) if follows else None
            given = None if begun is None else self.tokens.observed(begun)
            drawn = network.draw(start[places], given=given, generator=generator, floor=floor)
            made[places] = self.tokens.steps(drawn, begun, generator)
        return _absorbed(made)


def _absorbed(steps: Tensor) -> Tensor:
    """Return the steps ``(N, H, S)`` with absorbing ones after an end; see `data.fragments`."""
    from distributed_privrl.methods.privorl.step_loss import live_steps

    live = live_steps(steps)
    last = (live.sum(dim=1).long() - 1)[:, None, None].expand(-1, 1, END_BITS)
    absorbing = steps.new_zeros(len(steps), 1, steps.shape[2])
    absorbing[..., -END_BITS:] = steps[..., -END_BITS:].gather(1, last)
    return steps.where(live.bool().unsqueeze(-1), absorbing)


@dataclass(frozen=True, kw_only=True)
class TokenDrawer:
    """Draws whole trajectories, fragment after fragment; see `release.ChunkDrawer`.

    Args:
        synthesizer: of the tokens.
        trajectories: of all chunks together.
        config: of the drawing.
        max_length: steps of a trajectory at most; one that is cut there is marked truncated.
    """

    synthesizer: TokenSynthesizer
    trajectories: int
    config: FlooredRolloutConfig
    max_length: int

    @property
    def count(self) -> int:
        """The number of chunks."""
        return chunk_count(rows=self.trajectories, chunk_rows=self.config.chunk_trajectories)

    def draw(self, network: nn.Module, index: int, *, streams: Streams, device: str) -> Tensor:
        """Return the encoded steps ``(sum T, S)`` of chunk ``index``."""
        import torch

        size = self.config.chunk_trajectories
        follow = partial(
            self.synthesizer.follow,
            network,
            generator=torch.Generator(device).manual_seed(streams.integer(f"chunk/{index}")),
            floor=self.config.floor,
        )
        steps = chained_steps(
            self.synthesizer.fragments,
            follow,
            count=min(size, self.trajectories - index * size),
            max_length=self.max_length,
        )
        return torch.from_numpy(steps)
