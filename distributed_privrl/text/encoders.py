"""Encoders: a text becomes a vector of unit length, whose products are similarities."""

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.checks import check_positive

_WORD = re.compile(r"\w+")
_SHORT, _SHORT_WEIGHT = 3, 0.25
_PAIR = np.uint64(0x9E3779B97F4A7C15)
_MIXED = np.uint64(0xBF58476D1CE4E5B9)
_RUN_ON = np.uint64(29)


@dataclass(frozen=True, kw_only=True)
class HashedEncoder:
    """Words and pairs of words, hashed into signed cells: no model, no download, no state.

    A cell is the signed square root of its counts, in which words of three letters or fewer, and
    pairs of two such words, count a quarter.

    Args:
        dimension: cells (d).

    Reference: Weinberger et al. 2009, "Feature hashing for large scale multitask learning".
    """

    dimension: int = 384

    def __post_init__(self) -> None:
        check_positive("dimension", self.dimension)

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return vectors (B, d) of unit length; a text without words has zeros."""
        found = np.zeros((len(texts), self.dimension))
        for row, text in zip(found, texts, strict=True):
            words = _WORD.findall(text.lower())
            if words:
                row += self._cells(words)
        lengths = np.sqrt(np.square(found).sum(axis=1, keepdims=True))
        rows: NDArray[np.float32] = (found / np.maximum(lengths, 1e-30)).astype(np.float32)
        return rows

    def _cells(self, words: list[str]) -> NDArray[np.float64]:
        coded = [word.encode("utf-8", "replace") for word in words]
        single = np.array([zlib.crc32(word) for word in coded], np.uint64)
        weight = np.where([len(word) <= _SHORT for word in words], _SHORT_WEIGHT, 1.0)
        pairs = single[:-1] * _PAIR + single[1:]
        hashed = np.concatenate([single, pairs]) * _MIXED
        hashed = (hashed ^ (hashed >> _RUN_ON)) * _PAIR
        weights = np.concatenate([weight, np.maximum(weight[:-1], weight[1:])])
        signs = np.where(hashed >> np.uint64(63), -weights, weights)
        places = ((hashed >> np.uint64(16)) % np.uint64(self.dimension)).astype(np.int64)
        summed = np.bincount(places, weights=signs, minlength=self.dimension)
        cells: NDArray[np.float64] = np.sign(summed) * np.sqrt(np.abs(summed))
        return cells
