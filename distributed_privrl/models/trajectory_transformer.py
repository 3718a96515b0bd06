"""The transformer that denoises trajectory fragments (PrivORL-j)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.models.attention import AttentionBlock, check_heads, normalise
from distributed_privrl.models.fragment_inputs import (
    condition_features,
    embedding,
    sinusoids,
    step_features,
)
from distributed_privrl.models.layers import Waves, linear
from distributed_privrl.models.sizes import (
    POSITION_FEATURES,
    STEP_FEATURES,
    step_parts,
)

_PARTS = 5
_PREFIX_TOKENS = 1 + _PARTS  # the diffusion step, and five tokens of the linking transition


class TrajectoryTransformer(nn.Module):
    """Predicts the noise in a fragment of H steps from 5 H + 6 tokens, without causal order.

    Each step gives five tokens (observation, action, reward, next observation, end bits), each
    part embedded and decoded by an MLP of its own; one token holds the diffusion step and five the
    linking transition. Only ``nn.Linear`` layers hold trainable parameters, each runs once a
    forward pass with the batch as its first axis, and the layer norms have no parameters, so that
    per-unit gradient norms can be read off the layers' inputs and output gradients.

    With O = 4, A = 2 (S = 13) it has 5,830,157 parameters at width 256 and depth 6, and 276,749 at
    width 64 and depth 4.

    Args:
        observation_width: numbers of an encoded observation (O).
        action_width: numbers of an encoded action (A).
        horizon: steps of a fragment (H).
        width: width of a token (W).
        depth: number of blocks.
        heads: attention heads; must divide ``width``.
        column_frequencies: sines and cosines of each number, beside the number; see `Waves`.
        generator: source of the initial weights.

    Raises:
        ConfigError: a size is not positive, or ``heads`` does not divide ``width``.

    Reference: PrivORL, section VI-B and appendix F-A (six blocks, four heads).
    """

    positions: Tensor

    def __init__(
        self,
        observation_width: int,
        action_width: int,
        *,
        horizon: int,
        width: int = 256,
        depth: int = 6,
        heads: int = 4,
        column_frequencies: int = 0,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        sizes = {"horizon": horizon, "width": width, "depth": depth, "heads": heads}
        for name, value in sizes.items():
            check_positive(name, value)
        check_heads(heads, width)
        self.parts = step_parts(observation_width, action_width)
        self.step_width = sum(self.parts)
        self.horizon = horizon
        self.width = width
        self.time = embedding(STEP_FEATURES, width, width, generator)
        self.waves = Waves(column_frequencies)
        shown = [self.waves.width(part) for part in self.parts]
        self.condition = embedding(sum(shown) + 1, width, _PARTS * width, generator)
        self.embed = nn.ModuleList(embedding(p, width, width, generator) for p in shown)
        self.position = linear(POSITION_FEATURES, width, generator)
        self.blocks = nn.ModuleList(AttentionBlock(width, heads, generator) for _ in range(depth))
        self.decode = nn.ModuleList(embedding(width, width, p, generator) for p in self.parts)
        self.register_buffer("positions", _position_features(horizon), persistent=False)

    def forward(
        self, noisy: Tensor, step_condition: Tensor, condition: Tensor, mask: Tensor
    ) -> Tensor:
        """Return the predicted noise ``(N, H, S)``; see `FragmentNetwork`."""
        real = mask.bool()
        padded = ~real.unsqueeze(-1)
        hidden = self._tokens(noisy.masked_fill(padded, 0), step_condition, condition)
        keys = F.pad(real, (_PREFIX_TOKENS, 0), value=True)
        keys = torch.cat((keys, real.repeat(1, _PARTS - 1)), dim=1)[:, None, None, :]
        for block in self.blocks:
            hidden = block(hidden, keys)
        streams = torch.split(hidden[:, _PREFIX_TOKENS:], self.horizon, dim=1)
        decoded = [mlp(normalise(part)) for mlp, part in zip(self.decode, streams, strict=True)]
        return torch.cat(decoded, dim=-1).masked_fill(padded, 0)

    def _tokens(self, noisy: Tensor, step_condition: Tensor, condition: Tensor) -> Tensor:
        """Return the tokens ``(N, 6 + 5 H, W)``, ordered by part, then by step."""
        rows = len(noisy)
        parts = torch.split(noisy, self.parts, dim=-1)
        linked = condition_features(condition, self.waves)
        tokens = (
            self.time(step_features(step_condition)).unsqueeze(1),
            self.condition(linked).view(rows, _PARTS, self.width),
            *(mlp(self.waves(part)) for mlp, part in zip(self.embed, parts, strict=True)),
        )
        position: Tensor = self.position(self.positions.expand(rows, -1, -1))
        return torch.cat(tokens, dim=1) + position


def _position_features(horizon: int) -> Tensor:
    """Return ``(6 + 5 H, POSITION_FEATURES)``: sinusoids of each token's index in the paper.

    The paper orders tokens by step, then by part; attention does not care, so they are stored by
    part and keep the paper's index.
    """
    prefix = torch.arange(_PREFIX_TOKENS)
    steps = _PREFIX_TOKENS + _PARTS * torch.arange(horizon) + torch.arange(_PARTS).unsqueeze(1)
    index = torch.cat((prefix, steps.flatten())).float()
    return sinusoids(index, count=POSITION_FEATURES, shortest=2.0 * _PARTS, longest=1000.0)
