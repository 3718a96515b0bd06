"""A language model as a policy: log-probabilities of what it wrote, their entropy, and values."""

import copy
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from distributed_privrl.text.generation import (
    Completions,
    last_logits,
    positions_of,
)
from distributed_privrl.text.language import Language


class Judged(NamedTuple):
    """Numbers of each token of B completions (B, C)."""

    log_probabilities: Tensor
    """Of the token, given the prompt and the tokens before it."""
    entropies: Tensor
    """Of the distribution that it was drawn from, in nats."""
    values: Tensor
    """Expected sum of rewards from this token on."""


class PolicyWithValue(nn.Module):
    """A causal language model and a linear value on its last hidden states, at zero first.

    Args:
        language: the model is trained in place.
    """

    def __init__(self, language: Language) -> None:
        super().__init__()
        self.language = language
        self.model = language.model
        self.value = nn.Linear(int(language.model.config.hidden_size), 1).to(language.device)
        nn.init.zeros_(self.value.weight)
        nn.init.zeros_(self.value.bias)

    def forward(self, completions: Completions, *, entropies: bool = True) -> Judged:
        """Return what the model says of completions now.

        Logits are used where tokens count alone: over a large vocabulary they cost more than the
        network of a small model.

        Args:
            completions: B of them.
            entropies: compute them; else they are zero.
        """
        prompts, count = completions.prompts, completions.tokens.shape[1]
        tokens = torch.cat([prompts.tokens, completions.tokens], dim=1)
        mask = torch.cat([prompts.mask, completions.mask], dim=1)
        keep = {"logits_to_keep": count + 1} if last_logits(self.model) else {}
        output = self.model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions_of(mask),
            output_hidden_states=True,
            use_cache=False,
            **keep,
        )
        counted = completions.mask.bool()
        logits = output.logits[:, -count - 1 : -1][counted].float()
        chosen = -F.cross_entropy(logits, completions.tokens[counted], reduction="none")
        spread = torch.zeros_like(chosen)
        if entropies:
            spread = logits.logsumexp(-1) - (logits.softmax(-1) * logits).sum(-1)
        hidden = output.hidden_states[-1][:, -count - 1 : -1][counted]
        values = self.value(hidden.to(self.value.weight.dtype))[:, 0].float()
        return Judged(*(_placed(one, counted) for one in (chosen, spread, values)))


def _placed(numbers: Tensor, counted: Tensor) -> Tensor:
    """Return the numbers where tokens count, and zero elsewhere (B, C)."""
    return numbers.new_zeros(counted.shape).masked_scatter(counted, numbers)


def frozen_copy(language: Language) -> PolicyWithValue:
    """Return the model as it is now, for good."""
    copied = Language(model=copy.deepcopy(language.model), tokenizer=language.tokenizer)
    policy = PolicyWithValue(copied)
    policy.requires_grad_(False)
    return policy.eval()


def rows_of(completions: Completions, rows: Tensor) -> Completions:
    """Return some of the completions, by their numbers."""
    prompts = completions.prompts
    return Completions(
        prompts=type(prompts)(tokens=prompts.tokens[rows], mask=prompts.mask[rows]),
        tokens=completions.tokens[rows],
        mask=completions.mask[rows],
        texts=[completions.texts[row] for row in rows.tolist()],
    )


def parts_of(rows: Tensor, size: int) -> list[Tensor]:
    """Cut the numbers of rows into pieces of ``size``, the last one shorter."""
    return [rows[start : start + size] for start in range(0, len(rows), size)]
