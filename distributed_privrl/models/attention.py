"""The block of transformers: self-attention and an MLP, in linear layers alone."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.layers import linear
from distributed_privrl.models.sizes import WIDENING


class Past(NamedTuple):
    """Keys and values of the tokens so far, ``(N, heads, T, W / heads)`` each."""

    keys: Tensor
    values: Tensor


class AttentionBlock(nn.Module):
    """Self-attention and an MLP, each behind a layer norm and beside a skip connection.

    Only ``nn.Linear`` layers hold parameters, each runs once a forward pass with the batch as its
    first axis, and the layer norms have no parameters: per-unit gradient norms can be read off.

    Args:
        width: of a token (W).
        heads: attention heads; must divide ``width``.
        generator: source of the initial weights.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.query_key_value = linear(width, 3 * width, generator)
        self.mix = linear(width, width, generator)
        self.widen = linear(width, WIDENING * width, generator)
        self.narrow = linear(WIDENING * width, width, generator)

    def forward(
        self, hidden: Tensor, seen: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        """Return the next tokens ``(N, T, W)``.

        Args:
            hidden: tokens ``(N, T, W)``.
            seen: which of them others see, ``(N, 1, 1, T)``; None: all.
            causal: a token sees itself and those before it alone.
        """
        query, key, value = self._parts(hidden)
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=seen, is_causal=causal)
        return self._next(hidden, found)

    def follow(self, hidden: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        """Return the next form of one more token ``(N, 1, W)``, and the past with it.

        Args:
            hidden: the token, which sees itself and those before it.
            past: of those before it; None: it is the first.
        """
        query, key, value = self._parts(hidden)
        if past is not None:
            key = torch.cat((past.keys, key), dim=2)
            value = torch.cat((past.values, value), dim=2)
        found = F.scaled_dot_product_attention(query, key, value)
        return self._next(hidden, found), Past(key, value)

    def _parts(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return query, key and value, ``(N, heads, T, W / heads)`` each."""
        rows, tokens, _ = hidden.shape
        fused = self.query_key_value(normalise(hidden)).view(rows, tokens, 3, self.heads, -1)
        query, key, value = fused.permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def _next(self, hidden: Tensor, found: Tensor) -> Tensor:
        hidden = hidden + self.mix(found.transpose(1, 2).reshape(hidden.shape))
        output: Tensor = hidden + self.narrow(F.gelu(self.widen(normalise(hidden))))
        return output


def normalise(hidden: Tensor) -> Tensor:
    """Return tokens ``(..., W)`` with mean 0 and deviation 1 each."""
    return F.layer_norm(hidden, hidden.shape[-1:])


def check_heads(heads: int, width: int) -> None:
    """Check that heads divide a token's width.

    Raises:
        ConfigError: they do not.
    """
    if width % heads:
        raise ConfigError(f"heads={heads} must divide width={width}")
