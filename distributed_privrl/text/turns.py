"""How a document is built: words of its turns, and how much a turn repeats the one before.

Reference: paper 003, section 4.2 (distributions of per-turn word counts and word-level Jaccard
similarity, compared by Kullback-Leibler divergence).
"""

import itertools
import re
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

COUNT_EDGES = (2, 3, 5, 9, 17, 33, 65, 129, 257)
"""Turns of 0-1, 2, 3-4, 5-8, ... words; the last cell has no end."""
JACCARD_EDGES = (0.0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5)
"""Cells of similarities: 0, up to .05, ..., above .5."""
COUNT_CELLS, JACCARD_CELLS = len(COUNT_EDGES) + 1, len(JACCARD_EDGES) + 1
CELLS = COUNT_CELLS + JACCARD_CELLS
_TURN = re.compile(r"^[^\S\n]*[^\s:][^:\n]{0,39}:\s", re.MULTILINE)
_WORD = re.compile(r"\w+")


def turns(text: str) -> list[str]:
    """Return what each speaker says in turn.

    A turn begins with a line ``Name: words``; a text without one, and what stands before the first,
    is a turn, too. Empty ones are left out.

    Example:
        >>> turns("User: Hi there" + chr(10) + "Assistant: Hello")
        ['Hi there', 'Hello']
        >>> turns("No speaker here."), turns("  ")
        (['No speaker here.'], [])
    """
    return [said for part in _TURN.split(text) if (said := part.strip())]


def turn_statistics(texts: Sequence[str]) -> NDArray[np.float64]:
    """Return two distributions of each text's turns, (B, `CELLS`): word counts, then similarities.

    Each adds up to 1; a text without turns has zeros, and one of a single turn is as if it repeated
    nothing.
    """
    found = np.zeros((len(texts), CELLS))
    for row, text in zip(found, texts, strict=True):
        said = [_WORD.findall(turn.lower()) for turn in turns(text)]
        if said:
            row[:COUNT_CELLS] = _shares(
                np.searchsorted(COUNT_EDGES, _lengths(said), "right"), COUNT_CELLS
            )
            similar = np.searchsorted(JACCARD_EDGES, _similarities(said), "left")
            row[COUNT_CELLS:] = _shares(similar, JACCARD_CELLS)
    return found


def _lengths(said: list[list[str]]) -> list[int]:
    return [len(words) for words in said]


def _similarities(said: list[list[str]]) -> list[float]:
    sets = [set(words) for words in said]
    pairs = list(itertools.pairwise(sets))
    return [len(one & other) / max(1, len(one | other)) for one, other in pairs] or [0.0]


def _shares(cells: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    counted = np.bincount(cells, minlength=count)
    shares: NDArray[np.float64] = counted / counted.sum()
    return shares
