"""What synthetic texts are good for: a small model learns from them and is tested on real ones.

Privacy:
    The accuracy is exact, of real texts without noise: for what lies in ``private/`` alone.

Reference: DP-RFT, section 4.1 and appendix G (texts of fewer than 50 tokens are left out there).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.language import Language
from distributed_privrl.text.policy import frozen_copy


@dataclass(frozen=True, kw_only=True)
class NextTokenConfig:
    """How the small model learns.

    Args:
        epochs: times that it reads the synthetic texts.
        batch: texts of a gradient step.
        learning_rate: of AdamW.
        least_tokens: shorter texts are left out of training.
        most_tokens: of a text; what is behind them is left out.
    """

    epochs: int = 10
    batch: int = 32
    learning_rate: float = 3e-4
    least_tokens: int = 2
    most_tokens: int = 512


def next_token_accuracy(
    language: Language,
    synthetic: Sequence[str],
    held_out: Sequence[str],
    *,
    config: NextTokenConfig,
    streams: Streams,
) -> float:
    """Return the share of the tokens of held-out texts that a model of synthetic ones guesses.

    Args:
        language: the model that learns; a copy of it does.
        synthetic: it learns from them.
        held_out: real texts that no model has seen.
        config: how it learns.
        streams: public randomness.

    Raises:
        ConfigError: no text of either kind is long enough.
    """
    learned = tuned(language, synthetic, config=config, streams=streams)
    right, tokens = 0, 0
    coded = _coded(learned, held_out, config, least=2)
    if not coded:
        raise ConfigError(
            f"none of {len(held_out)} held-out texts has two tokens: give longer ones"
        )
    with torch.no_grad():
        for start in range(0, len(coded), config.batch):
            shown, wanted = _columns(learned, coded[start : start + config.batch])
            guesses = learned.model(**shown).logits[:, :-1].argmax(-1)
            right += int(((guesses == wanted) & (wanted != _IGNORED)).sum())
            tokens += int((wanted != _IGNORED).sum())
    return right / tokens


def tuned(
    language: Language, texts: Sequence[str], *, config: NextTokenConfig, streams: Streams
) -> Language:
    """Return a copy of a model that has learned texts by heart as far as ``config`` has it do.

    Raises:
        ConfigError: no text is long enough.
    """
    learned = frozen_copy(language).language
    learned.model.requires_grad_(True)
    coded = _coded(learned, texts, config, least=config.least_tokens)
    if not coded:
        raise ConfigError(
            f"none of {len(texts)} texts has {config.least_tokens} tokens: give longer ones"
        )
    optimiser = torch.optim.AdamW(learned.model.parameters(), lr=config.learning_rate)
    order = streams.numpy("next tokens")
    for _ in range(config.epochs):
        rows = order.permutation(len(coded))
        for start in range(0, len(rows), config.batch):
            chosen = [coded[row] for row in rows[start : start + config.batch]]
            shown, wanted = _columns(learned, chosen)
            logits = learned.model(**shown).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(
                logits.flatten(0, 1).float(), wanted.flatten(), ignore_index=_IGNORED
            )
            optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return learned


_IGNORED = -100


def _coded(
    language: Language, texts: Sequence[str], config: NextTokenConfig, *, least: int
) -> list[list[int]]:
    cut = (one[: config.most_tokens] for one in language.encode(texts))
    return [one for one in cut if len(one) >= least]


def _columns(
    language: Language, rows: Sequence[Sequence[int]]
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """Return what a model is shown (B, L) and the tokens that follow (B, L - 1)."""
    longest = max(map(len, rows))
    tokens = np.full((len(rows), longest), language.pad)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    for row, one in enumerate(rows):
        tokens[row, : len(one)], mask[row, : len(one)] = one, 1
    shown = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
    moved = {name: one.to(language.device) for name, one in shown.items()}
    wanted = torch.where(moved["attention_mask"] == 1, moved["input_ids"], _IGNORED)
    return moved, wanted[:, 1:]
