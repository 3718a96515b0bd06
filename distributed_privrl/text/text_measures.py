"""Lengths, turns, repetition and copies of texts.

Privacy:
    What compares with real texts is exact, without noise: for what lies in ``private/`` alone.

Reference: DP-RFT, sections 6.1 and E.1.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import wasserstein_distance

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError

_WORD = re.compile(r"[^\W\d_]+")


def word_counts(texts: Iterable[str]) -> NDArray[np.float64]:
    """Return the number of words of each text."""
    return np.array([len(text.split()) for text in texts], dtype=np.float64)


def turn_counts(texts: Iterable[str]) -> NDArray[np.float64]:
    """Return the number of turns of each text: its lines that are not empty."""
    return np.array([len(_turns(text)) for text in texts], dtype=np.float64)


def turn_words(texts: Iterable[str]) -> NDArray[np.float64]:
    """Return the number of words of each turn of all texts."""
    return word_counts(turn for text in texts for turn in _turns(text))


def distribution_distance(
    measure: Callable[[Iterable[str]], NDArray[np.float64]],
    synthetic: Sequence[str],
    real: Sequence[str],
) -> float:
    """Return how far a measure's distributions are apart: the mean way between their quantiles.

    Args:
        measure: e.g. `word_counts`; the distance is in its unit.
        synthetic: texts.
        real: texts.

    Raises:
        ConfigError: one side has nothing to measure.
    """
    left, right = measure(synthetic), measure(real)
    if not len(left) or not len(right):
        raise ConfigError(f"{len(left)} and {len(right)} values: both sides must have one or more")
    return float(wasserstein_distance(left, right))


def duplicates(texts: Sequence[str]) -> float:
    """Return the share of texts that an earlier one equals, but for case and blanks."""
    plain = {" ".join(text.lower().split()) for text in texts}
    return 1 - len(plain) / len(texts) if texts else 0.0


@dataclass(frozen=True, kw_only=True)
class Copies:
    """What synthetic texts have word for word from real ones.

    Args:
        texts: share of synthetic texts with a copied sequence of words.
        words: share of synthetic words that lie in such sequences.
        longest: words of the longest one; 0: there is none.
    """

    texts: float
    words: float
    longest: int


def copies(
    synthetic: Sequence[str], real: Iterable[str], *, public: Iterable[str] = (), words: int = 8
) -> Copies:
    """Return what was copied, word for word but for case.

    Args:
        synthetic: texts.
        real: texts, as many as there are: they are read one after the other.
        public: texts whose sequences anybody may have: they count as no copies.
        words: shortest sequence that counts.
    """
    check_positive("words", words)
    mine = set(_sequences(synthetic, words)).difference(_sequences(public, words))
    known = mine.intersection(_sequences(real, words))
    copied, all_words, longest, hit = 0, 0, 0, 0
    for text in synthetic:
        row = text.lower().split()
        starts = [tuple(row[at : at + words]) in known for at in range(len(row) - words + 1)]
        marked, run = np.zeros(len(row), dtype=bool), 0
        for at, found in enumerate(starts):
            run = run + 1 if found else 0
            if found:
                marked[at : at + words] = True
                longest = max(longest, run + words - 1)
        copied, all_words, hit = copied + int(marked.sum()), all_words + len(row), hit + any(starts)
    return Copies(
        texts=hit / len(synthetic) if synthetic else 0.0,
        words=copied / all_words if all_words else 0.0,
        longest=longest,
    )


def foreign_words(synthetic: Iterable[str], real: Iterable[str]) -> float:
    """Return the share of words of texts that no real text has: runs of letters, but for case.

    Broken language shows here, and so do words of another field or another language.
    """
    known = {word for text in real for word in _letters(text)}
    mine = [word not in known for text in synthetic for word in _letters(text)]
    return sum(mine) / len(mine) if mine else 0.0


def nearest_jaccard(synthetic: Sequence[str], real: Sequence[str]) -> NDArray[np.float64]:
    """Return for each synthetic text its Jaccard similarity with the real one that is nearest (M,).

    Words are compared as sets; texts without words are similar to nothing.

    Reference: DP-RFT, figure 3.
    """
    others = [set(text.lower().split()) for text in real]
    found = [
        max((_jaccard(mine, other) for other in others), default=0.0)
        for mine in (set(text.lower().split()) for text in synthetic)
    ]
    return np.array(found, dtype=np.float64)


def _jaccard(one: set[str], other: set[str]) -> float:
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared) if shared else 0.0


def _letters(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _turns(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def _sequences(texts: Iterable[str], words: int) -> Iterator[tuple[str, ...]]:
    for row in (text.lower().split() for text in texts):
        yield from (tuple(row[at : at + words]) for at in range(len(row) - words + 1))
