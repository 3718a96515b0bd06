"""A causal transformer of discretised steps: each token's category, given the tokens before it."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.core.checks import check_positive
from distributed_privrl.models.attention import AttentionBlock, Past, check_heads, normalise
from distributed_privrl.models.fragment_inputs import sinusoids
from distributed_privrl.models.layers import Waves, linear
from distributed_privrl.models.row_bins import Variable, drawn_categories
from distributed_privrl.models.sizes import POSITION_FEATURES, START_FEATURES, code_width

_SMALL_OUTPUT = 0.1


class TokenTransformer(nn.Module):
    """Predicts the categories of H steps and of the observation after them, one after the other.

    A token is a variable's category. Their order is observation, then action, reward and ends, step
    after step, then the last observation: L = H P + O for P variables a step, O of them of an
    observation. A token that stands before them says how the fragment begins. Each variable is
    embedded and decoded by a layer of its own. Only ``nn.Linear`` layers hold parameters, each runs
    once a forward pass with the batch as its first axis, so that per-unit gradient norms can be
    read off.

    Args:
        observation: variables of an observation (O).
        others: variables of the rest of a step.
        horizon: steps of a fragment (H).
        width: of a token (W).
        depth: number of blocks.
        heads: attention heads; must divide ``width``.
        column_frequencies: of what stands for a bin; see `category_codes`.
        generator: source of the initial weights.

    Raises:
        ConfigError: a size is not positive, or ``heads`` does not divide ``width``.

    Reference: PrivORL, appendix E, DP-Transformer.
    """

    positions: Tensor

    def __init__(
        self,
        observation: Sequence[Variable],
        others: Sequence[Variable],
        *,
        horizon: int,
        width: int,
        depth: int,
        heads: int,
        column_frequencies: int,
        generator: torch.Generator,
    ) -> None:
        super().__init__()
        sizes = {"horizon": horizon, "width": width, "depth": depth, "heads": heads}
        for name, value in sizes.items():
            check_positive(name, value)
        check_heads(heads, width)
        self.horizon, self.observed = horizon, len(observation)
        self.variables = (*observation, *others)
        for index, one in enumerate(self.variables):
            self.register_buffer(
                f"codes_{index}", category_codes(one, column_frequencies), persistent=False
            )
        self.start = linear(START_FEATURES, width, generator)
        self.position = linear(POSITION_FEATURES, width, generator)
        self.embed = nn.ModuleList(
            linear(code_width(one, column_frequencies), width, generator) for one in self.variables
        )
        self.blocks = nn.ModuleList(AttentionBlock(width, heads, generator) for _ in range(depth))
        self.decode = nn.ModuleList(
            _small(linear(width, one.size, generator)) for one in self.variables
        )
        places = torch.arange(self.tokens).float()
        features = sinusoids(places, count=POSITION_FEATURES, shortest=2.0, longest=1000.0)
        self.register_buffer("positions", features, persistent=False)

    @property
    def tokens(self) -> int:
        """The number L of tokens that are predicted."""
        return self.horizon * len(self.variables) + self.observed

    def variable(self, token: int) -> int:
        """Return the variable of a token, by its place among those of a step."""
        return token % len(self.variables)

    def forward(self, observations: Tensor, others: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
        """Return the negative log-likelihoods of categories, in nats.

        Args:
            observations: categories of H + 1 observations ``(N, H + 1, O)``.
            others: of the rest of H steps ``(N, H, P - O)``.
            start: how the fragment begins ``(N, START_FEATURES)``.

        Returns:
            of the observations ``(N, H + 1, O)``, and of the rest ``(N, H, P - O)``.
        """
        hidden = self._shown(observations, others, start)
        for block in self.blocks:
            hidden = block(hidden, causal=True)
        hidden, rows = normalise(hidden), len(hidden)
        step, last = torch.split(hidden, [self.tokens - self.observed, self.observed], dim=1)
        step = step.view(rows, self.horizon, len(self.variables), -1)
        of_observations = [
            self._losses(
                index,
                torch.cat((step[:, :, index], last[:, index : index + 1]), dim=1),
                observations[..., index],
            )
            for index in range(self.observed)
        ]
        of_others = [
            self._losses(
                self.observed + index, step[:, :, self.observed + index], others[..., index]
            )
            for index in range(others.shape[-1])
        ]
        return torch.stack(of_observations, dim=-1), torch.stack(of_others, dim=-1)

    def _losses(self, index: int, hidden: Tensor, categories: Tensor) -> Tensor:
        logits: Tensor = self.decode[index](hidden)
        return F.cross_entropy(logits.movedim(-1, 1), categories, reduction="none")

    def _shown(self, observations: Tensor, others: Tensor, start: Tensor) -> Tensor:
        """Return what the blocks are shown, the start before all tokens but the last."""
        rows = len(start)
        seen = [self._embedded(i, observations[..., i]) for i in range(self.observed)]
        rest = [self._embedded(self.observed + i, others[..., i]) for i in range(others.shape[-1])]
        steps = torch.stack([*(one[:, :-1] for one in seen), *rest], dim=2)
        last = torch.stack([one[:, -1] for one in seen], dim=1)
        before = self.start(start).unsqueeze(1)
        shown = torch.cat((before, steps.flatten(1, 2), last[:, :-1]), dim=1)
        position: Tensor = self.position(self.positions.expand(rows, -1, -1))
        return shown + position

    def _embedded(self, index: int, categories: Tensor) -> Tensor:
        """Return embeddings ``(..., W)`` of the categories ``(...)`` of a variable."""
        codes: Tensor = getattr(self, f"codes_{index}")
        embedded: Tensor = self.embed[index](codes[categories])
        return embedded

    def draw(
        self,
        start: Tensor,
        *,
        given: Tensor | None = None,
        generator: torch.Generator,
        floor: float = 0.0,
    ) -> Tensor:
        """Return the categories of fragments ``(N, L)``, token after token.

        Args:
            start: how each fragment begins ``(N, START_FEATURES)``, on the generator's device.
            given: categories of the first observation ``(N, O)``; None: it is drawn.
            generator: source of the categories.
            floor: of ``floored`` variables; see `drawn_categories`.
        """
        rows, device = len(start), generator.device
        drawn = torch.zeros(rows, self.tokens, dtype=torch.long, device=device)
        past: list[Past | None] = [None] * len(self.blocks)
        with torch.inference_mode():
            shown, places = self.start(start), self.position(self.positions)
            for token in range(self.tokens):
                hidden = (shown + places[token]).unsqueeze(1)
                for index, block in enumerate(self.blocks):
                    assert isinstance(block, AttentionBlock)
                    hidden, past[index] = block.follow(hidden, past[index])
                variable = self.variable(token)
                if given is not None and token < self.observed:
                    chosen = given[:, token]
                else:
                    uniforms = torch.rand(rows, generator=generator, device=device)
                    chosen = drawn_categories(
                        self.decode[variable](normalise(hidden[:, 0])),
                        uniforms,
                        floor=floor * self.variables[variable].floored,
                    )
                drawn[:, token] = chosen
                shown = self._embedded(variable, chosen)
        return drawn


def category_codes(variable: Variable, column_frequencies: int) -> Tensor:
    """Return fixed numbers that stand for each category of a variable, ``(K, C)``.

    A bin has its rank, from -1 to 1, with sines and cosines: neighbours are alike, so that what is
    learned of one bin holds near it. Other categories have a column each.

    Args:
        variable: of K categories.
        column_frequencies: sines and cosines of a bin's rank; see `Waves`.
    """
    if variable.kind != "number":
        return torch.eye(variable.size)
    rank = (2 * torch.arange(variable.size) + 1) / variable.size - 1
    codes: Tensor = Waves(column_frequencies)(rank.unsqueeze(1))
    return codes


def _small(layer: nn.Linear) -> nn.Linear:
    """Return the layer with outputs that are nearly equal."""
    with torch.no_grad():
        layer.weight.mul_(_SMALL_OUTPUT)
        layer.bias.zero_()
    return layer
