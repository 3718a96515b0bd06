"""How good texts are, by judges that no reward used.

Rewards compare hashed words and pairs of words. A judge of another kind is a sentence encoder that
people trained on what they wrote (all-MiniLM-L6-v2). Others hash pairs and triples of words, by
another hash, so that they see the order of words, and single words, the commonest left out, which
tell the topic alone.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.feature_extraction.text import HashingVectorizer

from benchmarks.text_sides import Sides
from distributed_privrl.core.random import Streams
from distributed_privrl.text.language import Language
from distributed_privrl.text.minilm import MiniLmEncoder
from distributed_privrl.text.next_tokens import NextTokenConfig, next_token_accuracy
from distributed_privrl.text.similarity import frechet_distance, similarity
from distributed_privrl.text.text_measures import copies, duplicates

RISES = {
    "similarity": True,
    "frechet": False,
    "nearest sentence": True,
    "sentence frechet": False,
    "next token": True,
}
"""Measures that tell texts from their words in another order; whether more is better."""
_RUNS = HashingVectorizer(ngram_range=(2, 3), n_features=512)
_TOPIC = HashingVectorizer(stop_words="english", n_features=512)
_SENTENCES = MiniLmEncoder()
_LEARNING = NextTokenConfig(epochs=3, learning_rate=1e-3, least_tokens=4, most_tokens=64)


def judged(texts: Sequence[str], sides: Sides, *, seed: int) -> dict[str, float | None]:
    """Return the measures of texts beside held-out private ones.

    Privacy: exact figures; what is taken for private is public prose.
    """
    mine, real = _encoded(_RUNS, texts), _encoded(_RUNS, sides.held_out)
    topic = similarity(_encoded(_TOPIC, texts), _encoded(_TOPIC, sides.held_out))
    meant, really = _SENTENCES.encode(texts), _SENTENCES.encode(sides.held_out)
    sentences = similarity(meant, really)
    accuracy = next_token_accuracy(
        Language.load(sides.language / "model"),
        texts,
        sides.held_out,
        config=_LEARNING,
        streams=Streams(seed).child("judge"),
    )
    public = [one.text for one in sides.public]
    return {
        "similarity": similarity(mine, real).mean,
        "topic": topic.mean,
        "frechet": frechet_distance(mine, real),
        "sentences": sentences.mean,
        "nearest sentence": sentences.maximum,
        "sentence frechet": frechet_distance(meant, really),
        "next token": accuracy,
        "duplicates": duplicates(texts),
        "copies": copies(texts, sides.private, public=public).texts,
    }


def _encoded(judge: HashingVectorizer, texts: Sequence[str]) -> NDArray[np.float64]:
    return np.asarray(judge.transform(texts).toarray(), dtype=np.float64)
