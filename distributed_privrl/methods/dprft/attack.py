"""A fine-tuned model under a membership attack: how much better it knows a text than before.

A text's own loss says how hard it is, and not whether it was learned; the loss under the model
before the fine-tuning, which is public, is taken off.

Reference: Carlini et al., "Extracting training data from large language models" (2021), section
5.2 (comparison with another model); Mireshghallah et al., "Quantifying privacy risks of masked
language models using membership inference attacks" (2022), section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.evaluation.membership import by_group
from distributed_privrl.methods.dprft.fine_tuning import TRAINED, FineTuningMethod
from distributed_privrl.methods.dprft.language import language_of
from distributed_privrl.methods.dprft.tokens import NextTokenLoss, NextTokens, TokenCoding
from distributed_privrl.methods.dprft.writing import prompt_template, prompts_of
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.training import load_trained
from distributed_privrl.text.extra import text_package

EXCESS = "loss less that of the model before"
_BATCH_ROWS = 32


@dataclass(frozen=True, eq=False)
class FineTuningAttack:
    """Losses of texts under the released model, less those under the model before.

    Args:
        coding: of texts, as the run's workers coded them.
        before: the public model.
        after: the model that wrote the release.
        rounds: that it was trained for.

    Privacy: losses of sensitive texts are raw private data, for ``private/`` alone.
    """

    coding: TokenCoding
    before: NextTokens
    after: NextTokens
    rounds: int
    settings: tuple[str, ...] = (EXCESS,)

    def text_losses(self, texts: Sequence[str]) -> NDArray[np.float64]:
        """Return the mean over each document's pieces; see `TextAttack.text_losses`."""
        tokenizer = text_package("tokenizers").Tokenizer.from_str(self.coding.tokenizer)
        coded = [
            self.coding.rows(self.coding.tokens(tokenizer, text), len(text.split()))
            for text in texts
        ]
        owners = np.repeat(np.arange(len(coded)), [len(rows) for rows in coded])
        rows = torch.from_numpy(np.concatenate(coded))
        starts = range(0, len(rows), _BATCH_ROWS)
        excess = [self._excess(rows[start : start + _BATCH_ROWS]) for start in starts]
        losses = torch.cat(excess).numpy()
        return by_group(losses[:, None], owners)[0]

    def _excess(self, rows: torch.Tensor) -> torch.Tensor:
        loss, undrawn = NextTokenLoss(), torch.zeros(len(rows), 0)
        with torch.inference_mode():
            return (loss(self.after, rows, undrawn) - loss(self.before, rows, undrawn)).double()


def open_attack(method: FineTuningMethod, _: CorpusRef, context: RunContext) -> FineTuningAttack:
    """Return the attack on a finished run.

    Args:
        method: that ran.
        context: of the run.

    Raises:
        ConfigError: the language or the prompts cannot be had again.
        StorageError: the checkpoint cannot be read.

    Privacy: nothing is drawn or charged.
    """
    config = method.config
    before, after = (language_of(config, prompt_template(config)) for _ in range(2))
    network = NextTokens(after.model)
    rounds = load_trained(context.folder / TRAINED, network, context)
    piece = config.training.most_tokens
    return FineTuningAttack(
        coding=TokenCoding.of(before, prompts_of(config), piece=piece),
        before=NextTokens(before.model),
        after=network,
        rounds=rounds,
    )
