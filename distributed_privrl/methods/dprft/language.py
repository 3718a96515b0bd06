"""The language model that a run starts from: read from a folder, or pre-trained on public prose."""

import functools
from pathlib import Path

import numpy as np
import platformdirs
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.config import ProseConfig, TextConfig
from distributed_privrl.methods.dprft.plan import check_room
from distributed_privrl.stages.devices import device_of
from distributed_privrl.text.generation import context_of
from distributed_privrl.text.language import Language, SmallModelConfig
from distributed_privrl.text.pretraining import PretrainingConfig, packed, pretrained
from distributed_privrl.text.prompts import PromptTemplate, described
from distributed_privrl.text.public_text import PublicDocument, excerpts, installed_documents

_WATCHED = 64
"""Rows of public prose whose loss is watched: a check takes a fraction of a step."""


def language_of(
    config: TextConfig, template: PromptTemplate, *, progress: Progress = silent
) -> Language:
    """Return the model before it is tuned, on the device that the run computes on.

    One of public prose is trained once, on the CPU, and kept.

    Args:
        config: of the run.
        template: of the prompts: each public text stands behind one that fits it.
        progress: told of the steps of a pre-training.

    Raises:
        ConfigError: a package is not installed, the packages have too little prose, or texts leave
            no room for a prompt.
        StorageError: the folder holds no model, or cannot be written.

    Privacy: public packages alone are read; nothing here knows where the corpus lies.
    """
    asked, device = config.model.language, device_of(config.runtime)
    if not isinstance(asked, ProseConfig):
        loaded = Language.load(asked)
        check_room(config, context_of(loaded.model))
        return loaded.to(device)
    made = pretrained(
        asked.folder or Path(platformdirs.user_cache_dir("privrl")) / "languages",
        described(template, public_documents(asked.packages, asked.excerpt_words)),
        config=pretraining_config(asked),
        streams=Streams(config.seed).child("pretraining"),
        progress=progress,
    )
    return made.to(device)


def watched_rows(
    config: TextConfig, template: PromptTemplate, language: Language
) -> NDArray[np.int64] | None:
    """Return rows of the prose that a model has learned, to watch its loss on; None: it has none.

    Args:
        config: of the run.
        template: as `language_of` had it.
        language: of `language_of`.

    Returns:
        ``(R, context)``, R up to 64, drawn by the seed.

    Privacy: as `language_of`.
    """
    asked = config.model.language
    if not isinstance(asked, ProseConfig):
        return None
    texts = described(template, public_documents(asked.packages, asked.excerpt_words))
    rows = packed(language, texts, length=asked.context)
    order = Streams(config.seed).child("watched").numpy("rows").permutation(len(rows))
    return rows[order[:_WATCHED]]


def pretraining_config(prose: ProseConfig) -> PretrainingConfig:
    """Return how the small model is trained."""
    sizes = SmallModelConfig(
        vocabulary=prose.vocabulary,
        context=prose.context,
        width=prose.width,
        layers=prose.layers,
        heads=prose.heads,
    )
    return PretrainingConfig(
        model=sizes,
        steps=prose.steps,
        batch=prose.batch,
        learning_rate=prose.learning_rate,
        checkpoint_every=min(50, prose.steps),
    )


@functools.lru_cache(maxsize=4)
def public_documents(packages: tuple[str, ...], words: int) -> tuple[PublicDocument, ...]:
    """Return excerpts of installed packages; parsing them takes seconds, so they are kept.

    Raises:
        ConfigError: see `installed_documents`.
    """
    return excerpts(installed_documents(packages), words=words)
