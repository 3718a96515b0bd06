"""Pre-training of a small language model on public text: kept in a folder, resumed to the bit."""

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import (
    remove_file,
    remove_folder,
    storage_errors,
    unfinished_folder,
)
from distributed_privrl.core.folders import keeping_of
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.text.language import (
    Language,
    SmallModelConfig,
    small_language,
    trained_tokenizer,
)
from distributed_privrl.text.states import TrainingState, load_state, save_state

_STATE = "state.safetensors"


@dataclass(frozen=True, kw_only=True)
class PretrainingConfig:
    """How a small model learns public prose.

    Args:
        model: its sizes.
        steps: gradient steps.
        batch: sequences of a step, each as long as the model's context.
        learning_rate: at its highest; it rises over the first twentieth and then falls to zero.
        weight_decay: of matrices.
        gradient_norm: largest norm of a gradient.
        checkpoint_every: steps between two checkpoints.
    """

    model: SmallModelConfig = field(default_factory=SmallModelConfig)
    steps: int = 2000
    batch: int = 8
    learning_rate: float = 2e-3
    weight_decay: float = 0.1
    gradient_norm: float = 1.0
    checkpoint_every: int = 200

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, counted from zero."""
        rising = max(1, self.steps // 20)
        if step < rising:
            return self.learning_rate * (step + 1) / rising
        done = (step - rising) / max(1, self.steps - rising)
        return self.learning_rate * 0.5 * (1 + math.cos(math.pi * done))


def pretrained(
    folder: Path,
    texts: Sequence[str],
    *,
    config: PretrainingConfig,
    streams: Streams,
    progress: Progress = silent,
) -> Language:
    """Return a model of public texts; a second call with the same arguments reads it from a folder.

    A call that was stopped goes on at its last checkpoint and ends at the same bits.

    Args:
        folder: holds a folder for each combination of arguments.
        texts: public ones alone, each with its prompt where the model is to follow prompts.
        config: how.
        streams: public randomness.
        progress: told of each checkpoint.

    Raises:
        ConfigError: there are too few texts for one sequence.
        MissingExtraError: transformers is not installed.
        StorageError: the folder cannot be written.
    """
    named = json.dumps([asdict(config), streams.seed, len(texts)]).encode()
    digest = hashlib.sha256(b"\0".join([named, *(text.encode() for text in texts)])).hexdigest()
    home = folder / digest[:16]
    if (finished := home / "model").exists():
        return Language.load(finished)
    tokenizer = trained_tokenizer(texts, config=config.model)
    language = small_language(tokenizer, config=config.model, streams=streams)
    rows = packed(language, texts, length=config.model.context)
    _train(language, rows, home / _STATE, config=config, streams=streams, progress=progress)
    keep(language, finished)
    remove_file(home / _STATE)
    return Language.load(finished)


def keep(language: Language, folder: Path) -> None:
    """Write a model so that a reader sees all of it or none; an earlier one is replaced.

    Raises:
        StorageError: the folder cannot be written.
    """
    with storage_errors(f"write {folder}"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_folder(folder.parent) as unfinished:
            language.save(unfinished / "model")
            remove_folder(folder)
            keeping_of(folder).publish(unfinished / "model", folder)


def packed(language: Language, texts: Sequence[str], *, length: int) -> NDArray[np.int64]:
    """Return texts one after the other, an end token behind each, cut into rows ``(R, length)``.

    Raises:
        ConfigError: they do not fill one row.
    """
    joined = [token for one in language.encode(texts) for token in (*one, language.end)]
    rows = len(joined) // length
    if not rows:
        raise ConfigError(
            f"public texts have {len(joined)} tokens, one row needs {length}: add some"
        )
    return np.array(joined[: rows * length], dtype=np.int64).reshape(rows, length)


def next_token_loss(language: Language, tokens: Tensor) -> Tensor:
    """Return the mean cross entropy of each token given those before it, in nats.

    Args:
        language: the model.
        tokens: (B, L), none of them padding.
    """
    logits = language.model(input_ids=tokens).logits[:, :-1]
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


def public_loss(language: Language, rows: NDArray[np.int64], *, batch: int = 16) -> float:
    """Return the mean cross entropy on rows of public text that `packed` made, in nats a token."""
    with torch.no_grad():
        losses = [
            float(next_token_loss(language, torch.from_numpy(part).to(language.device))) * len(part)
            for part in (rows[start : start + batch] for start in range(0, len(rows), batch))
        ]
    return sum(losses) / len(rows)


def _train(
    language: Language,
    rows: NDArray[np.int64],
    path: Path,
    *,
    config: PretrainingConfig,
    streams: Streams,
    progress: Progress,
) -> None:
    optimiser = torch.optim.AdamW(_groups(language, config), betas=(0.9, 0.95))
    state = load_state(path, language.model, optimiser) if path.exists() else TrainingState(step=0)
    for step in range(state.step, config.steps):
        chosen = streams.numpy(f"batch {step}").integers(len(rows), size=config.batch)
        for group in optimiser.param_groups:
            group["lr"] = config.rate(step)
        loss = next_token_loss(language, torch.from_numpy(rows[chosen]).to(language.device))
        optimiser.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(language.model.parameters(), config.gradient_norm)
        optimiser.step()
        done = step + 1
        if done % config.checkpoint_every == 0 or done == config.steps:
            if done < config.steps:
                save_state(path, language.model, optimiser, TrainingState(step=done))
            progress("language", done, config.steps, f"public loss {float(loss.detach()):.2f}")


def _groups(language: Language, config: PretrainingConfig) -> Iterator[dict[str, object]]:
    parameters = list(language.model.parameters())
    matrices = [one for one in parameters if one.ndim >= 2]
    yield {"params": matrices, "weight_decay": config.weight_decay}
    yield {"params": [one for one in parameters if one.ndim < 2], "weight_decay": 0.0}
