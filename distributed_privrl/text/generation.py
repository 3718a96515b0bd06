"""Texts drawn from a causal language model: in batches, with a key-value cache, from one stream."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.text.language import Batch, Language

FREE = -1
"""In place of a token that is to be drawn, where others are given."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Completions:
    """What a model wrote behind each prompt.

    Args:
        prompts: the prompts (B, P), padded on the left.
        tokens: (B, C), the end token included, padding behind it.
        mask: (B, C), 1 up to and with the end token.
        texts: B texts, without special tokens.
    """

    prompts: Batch
    tokens: Tensor
    mask: Tensor
    texts: list[str]


def generate(
    language: Language,
    prompts: Sequence[str],
    *,
    most_tokens: int,
    generator: torch.Generator,
    temperature: float = 1.0,
    given: Sequence[Sequence[int]] | None = None,
) -> Completions:
    """Draw one completion a prompt.

    Draws are the same on every device up to the rounding of probabilities, since the numbers that
    decide them come from the processor.

    Args:
        language: the model.
        prompts: B, put into the model's chat template where it has one; one that is too long for
            the model loses its beginning.
        most_tokens: C at most.
        generator: source of the draws, on the processor.
        temperature: by which logits are divided.
        given: for each prompt the tokens that its completion has in its first places, ``FREE``
            where one is to be drawn; it ends where they do. None: all are drawn.

    Raises:
        ConfigError: there is no prompt, ``most_tokens`` leaves no room for one, or the temperature
            is not positive.
    """
    check_positive("temperature", temperature)
    room = context_of(language.model) - most_tokens
    if not prompts or room < 1:
        raise ConfigError(
            f"{len(prompts)} prompts, most_tokens {most_tokens}: at least one prompt is needed, and"
            f" fewer tokens than the model's {context_of(language.model)}"
        )
    coded = [one[-room:] or [language.end] for one in language.encode_prompts(prompts)]
    batch = language.left_padded(coded)
    with torch.no_grad():
        tokens, mask = _drawn(language, batch, most_tokens, temperature, generator, given)
    rows = zip(tokens.tolist(), mask.sum(1).tolist(), strict=True)
    texts = language.decode(row[:length] for row, length in rows)
    return Completions(prompts=batch, tokens=tokens, mask=mask, texts=texts)


def context_of(model: Any) -> int:
    """Return how many tokens a model of transformers takes."""
    return int(getattr(model.config, "max_position_embeddings", 1 << 20))


def positions_of(mask: Tensor) -> Tensor:
    """Return the place of each token among those that count (B, L); padding has place zero."""
    return (mask.cumsum(1) - 1).clamp(min=0)


def last_logits(model: Any) -> bool:
    """Tell whether a model can be asked for the logits of its last places alone."""
    return "logits_to_keep" in inspect.signature(type(model).forward).parameters


def _drawn(
    language: Language,
    batch: Batch,
    most_tokens: int,
    temperature: float,
    generator: torch.Generator,
    given: Sequence[Sequence[int]] | None,
) -> tuple[Tensor, Tensor]:
    rows, device = len(batch.tokens), language.device
    forced, lengths = _forced(given, rows, most_tokens)
    keep = {"logits_to_keep": 1} if last_logits(language.model) else {}
    shown, mask, cache = batch.tokens, batch.mask, None
    positions = positions_of(mask)
    running = torch.ones(rows, dtype=torch.bool)
    tokens, masks = [], []
    for place in range(most_tokens):
        output = language.model(
            input_ids=shown,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **keep,
        )
        cache = output.past_key_values
        logits = output.logits[:, -1].float() / temperature
        chosen = _choose(logits, generator)
        chosen = torch.where(forced[:, place] == FREE, chosen, forced[:, place])
        chosen = torch.where(running, chosen, language.pad)
        tokens.append(chosen)
        masks.append(running.long())
        running = running & (chosen != language.end) & (place + 1 < lengths)
        if not running.any():
            break
        shown = chosen[:, None].to(device)
        mask = torch.cat([mask, mask.new_ones(rows, 1)], dim=1)
        positions = positions[:, -1:] + 1
    return torch.stack(tokens, 1).to(device), torch.stack(masks, 1).to(device)


def _forced(
    given: Sequence[Sequence[int]] | None, rows: int, most_tokens: int
) -> tuple[Tensor, Tensor]:
    """Return given tokens (B, C) and the most tokens of each completion (B,)."""
    forced = torch.full((rows, most_tokens), FREE)
    if given is None:
        return forced, torch.full((rows,), most_tokens)
    for row, one in enumerate(given):
        forced[row, : len(one)] = torch.tensor(list(one[:most_tokens]), dtype=torch.long)
    return forced, torch.tensor([min(max(1, len(one)), most_tokens) for one in given])


def _choose(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw a token a row by inverting the distribution function (B,)."""
    heights = logits.double().softmax(-1).cumsum(-1)
    marks = torch.rand(len(heights), 1, generator=generator, dtype=torch.float64).to(heights.device)
    found = torch.searchsorted(heights, marks * heights[:, -1:], right=True)
    return found.clamp(max=heights.shape[1] - 1)[:, 0].cpu()
