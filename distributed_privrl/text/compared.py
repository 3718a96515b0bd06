"""Synthetic texts beside real ones: how near, how long, how built.

Privacy:
    Exact figures of real texts, without noise: for what lies in ``private/`` alone.

Reference: DP-RFT, sections 4.1 and 6.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from distributed_privrl.text.scoring import Encoder
from distributed_privrl.text.similarity import frechet_distance, similarity
from distributed_privrl.text.text_measures import (
    distribution_distance,
    duplicates,
    foreign_words,
    nearest_jaccard,
    turn_counts,
    turn_words,
    word_counts,
)


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What synthetic texts are beside real ones.

    Args:
        similarity: mean cosine over all pairs.
        nearest: mean over texts of the cosine with the nearest real one.
        nearest_jaccard: mean over texts of the largest Jaccard similarity of words.
        most_jaccard: the largest of all.
        frechet: squared Frechet distance of the vectors.
        words: mean way between the quantiles of both sides' words of a text.
        turns: the same of turns of a text.
        turn_words: the same of words of a turn.
        duplicates: share of texts that an earlier one equals.
        foreign_words: share of words of texts that no real one has.
    """

    similarity: float
    nearest: float
    nearest_jaccard: float
    most_jaccard: float
    frechet: float
    words: float
    turns: float
    turn_words: float
    duplicates: float
    foreign_words: float


def compare(texts: Sequence[str], real: Sequence[str], encoder: Encoder) -> Comparison:
    """Return what texts are beside real ones.

    Args:
        texts: two or more.
        real: two or more.
        encoder: of both; best one that no reward used.

    Raises:
        ConfigError: there are too few, or one side has no words.
    """
    mine, its = encoder.encode(texts), encoder.encode(real)
    near, jaccard = similarity(mine, its), nearest_jaccard(texts, real)
    return Comparison(
        similarity=near.mean,
        nearest=near.maximum,
        nearest_jaccard=float(jaccard.mean()),
        most_jaccard=float(jaccard.max()),
        frechet=frechet_distance(mine, its),
        words=distribution_distance(word_counts, texts, real),
        turns=distribution_distance(turn_counts, texts, real),
        turn_words=distribution_distance(turn_words, texts, real),
        duplicates=duplicates(texts),
        foreign_words=foreign_words(texts, real),
    )
