"""A tiny language of public prose, made in a second."""

import functools

import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.random import Streams
from distributed_privrl.text.language import (
    Language,
    SmallModelConfig,
    small_language,
    trained_tokenizer,
)
from distributed_privrl.text.public_text import PublicDocument, excerpts, installed_documents

SIZES = SmallModelConfig(vocabulary=384, context=48, width=32, layers=2, heads=2)


@functools.cache
def documents() -> tuple[PublicDocument, ...]:
    """Prose of a small package."""
    return excerpts(installed_documents(["gymnasium"]), words=40)[:200]


def texts() -> list[str]:
    """Their texts."""
    return [document.text for document in documents()]


@functools.cache
def tokenizer() -> object:
    """A tokenizer of them."""
    return trained_tokenizer(texts(), config=SIZES)


def language(*, seed: int = 0) -> Language:
    """An untrained model of two layers, 32 wide."""
    return small_language(tokenizer(), config=SIZES, streams=Streams(seed))
