"""Small corpora whose texts are vectors, written out, and voters that hold them."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.methods.dprft.similarity import Rounded, Similarity
from distributed_privrl.methods.dprft.voter import Voter, VoterSpec
from distributed_privrl.methods.dprft.votes import VoteRule
from distributed_privrl.text.turns import turn_statistics


class WrittenVectors:
    """An encoder of texts that begin with their vector: ``[1, 0] and words``."""

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        rows = [json.loads(text.partition("]")[0] + "]") for text in texts]
        found = np.array(rows, np.float64).reshape(len(texts), self.dimension)
        norms = np.linalg.norm(found, axis=1, keepdims=True)
        return (found / np.where(norms > 0, norms, 1)).astype(np.float32)


def written(vector: Sequence[float], words: str = "") -> str:
    return f"{list(vector)}{words}"


def write_corpus(path: Path, texts: Sequence[str], users: Sequence[str] = ()) -> Path:
    rows = [{"text": text} for text in texts]
    for row, user in zip(rows, users, strict=False):
        row["user"] = user
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def voters(
    path: Path,
    rule: VoteRule | None,
    similarity: Similarity,
    *,
    workers: int = 1,
    unit: str = "document",
) -> list[Voter]:
    return [
        Voter(
            VoterSpec(
                ref=CorpusRef(path=str(path), unit=unit, index=index, count=workers),
                encoder=WrittenVectors(similarity.dimension),
                similarity=similarity,
                rule=rule,
            )
        )
        for index in range(workers)
    ]


def asked(similarity: Similarity, texts: Sequence[str]) -> Rounded:
    encoder = WrittenVectors(similarity.dimension)
    return similarity.synthetic(encoder.encode(texts), turn_statistics(texts))


def summed(
    path: Path,
    rule: VoteRule,
    synthetic: Rounded,
    *,
    workers: int = 1,
    unit: str = "document",
) -> NDArray[np.int64]:
    held = voters(path, rule, rule.similarity, workers=workers, unit=unit)
    return np.sum([one.votes(synthetic) for one in held], axis=0)
