"""Voters: each holds a share of the corpus as vectors, and answers with sums of votes."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.corpus import CorpusRef, Document, documents
from distributed_privrl.methods.dprft.similarity import Rounded, Similarity
from distributed_privrl.methods.dprft.votes import VoteRule, towards_zero
from distributed_privrl.text.scoring import Encoder
from distributed_privrl.text.turns import CELLS, turn_statistics

_READ_AT_ONCE = 256
_BLOCK = 1024
"""Documents whose scores are in memory at once, whoever wrote them."""


@dataclass(frozen=True, kw_only=True)
class VoterSpec:
    """What a voter is built from: a reference and public settings, no text.

    Args:
        ref: its share of the corpus.
        encoder: public; it must take any text, and each text by itself.
        similarity: of documents and synthetic texts.
        rule: of votes; None: for `Voter.vector_sum` alone.
    """

    ref: CorpusRef
    encoder: Encoder
    similarity: Similarity
    rule: VoteRule | None


class Voter:
    """Owns a share of the corpus; what it answers is a sum over its units, before noise.

    Texts are read once, turned into vectors, and dropped.

    Privacy: a unit adds one vector of whole numbers, the mean of its documents' by the spec's rule,
    rounded towards zero: no further than the rule's `sensitivity` allows. A unit's vector depends
    on its own documents and the synthetic texts alone, whatever else the share holds (`Similarity`
    is exact). Sums are raw: the server adds noise before anything else sees them. It draws and
    charges nothing, so that a call may be repeated.
    """

    spread = True

    def __init__(self, spec: VoterSpec) -> None:
        self._spec = spec
        self._documents, self._firsts = _loaded(spec)

    def votes(self, synthetic: Rounded) -> NDArray[np.int64]:
        """Return the sum of votes (B,) of the share's units.

        Args:
            synthetic: B texts, from `Similarity.synthetic`.

        Raises:
            UnsafeError: they are not, so that scores would not be exact.
        """
        similarity, rule = self._spec.similarity, self._spec.rule
        assert rule is not None
        similarity.check(synthetic)

        def given(part: slice) -> NDArray[np.int64]:
            return rule.votes(similarity.scores(self._documents.part(part), synthetic))

        return self._sum_of_means(given, len(synthetic.vectors))

    def vector_sum(self) -> NDArray[np.int64]:
        """Return the sum (d,) of the units' mean vectors, in steps."""

        def given(part: slice) -> NDArray[np.int64]:
            return self._documents.vectors[part].astype(np.int64)

        return self._sum_of_means(given, self._spec.similarity.dimension)

    def _sum_of_means(
        self, given: Callable[[slice], NDArray[np.int64]], width: int
    ) -> NDArray[np.int64]:
        """Return the sum (width,) over units of the means of what their documents give.

        Args:
            given: documents to their rows (N, width).
            width: of a row.
        """
        total = np.zeros(width, np.int64)
        for firsts, stop in self._blocks():
            first = int(firsts[0])
            if stop - first <= _BLOCK:
                total += _of_units(given(slice(first, stop)), firsts - first).sum(axis=0)
                continue
            own = np.zeros(width, np.int64)  # of one unit
            for begin in range(first, stop, _BLOCK):
                own += given(slice(begin, min(begin + _BLOCK, stop))).sum(axis=0)
            total += towards_zero(own, np.array(stop - first))
        return total

    def _blocks(self) -> Iterator[tuple[NDArray[np.int64], int]]:
        """Yield the first documents of some whole units, and where the last one ends."""
        ends = np.append(self._firsts[1:], len(self._documents.vectors))
        unit = 0
        while unit < len(self._firsts):
            most = self._firsts[unit] + _BLOCK
            after = max(unit + 1, int(np.searchsorted(ends, most, "right")))
            yield self._firsts[unit:after], int(ends[after - 1])
            unit = after


def _of_units(given: NDArray[np.int64], firsts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the units' means, towards zero, of their documents' rows, which follow each other."""
    if len(firsts) == len(given):
        return given
    counts = np.diff(np.append(firsts, len(given)))
    return towards_zero(np.add.reduceat(given, firsts, axis=0), counts[:, None])


def _loaded(spec: VoterSpec) -> tuple[Rounded, NDArray[np.int64]]:
    """Return the share's documents, a unit's behind each other, and where each unit begins."""
    read = documents(spec.ref)
    parts = [_rounded(spec, []), *(_rounded(spec, part) for part in _batches(read))]
    together = Rounded(
        np.concatenate([one.vectors for one, _ in parts]),
        None
        if not spec.similarity.structure_weight
        else np.concatenate([one.turns for one, _ in parts if one.turns is not None]),
        np.concatenate([one.entropy for one, _ in parts]),
    )
    units = np.concatenate([ids for _, ids in parts])
    order = np.argsort(units, kind="stable")
    _, firsts = np.unique(units[order], return_index=True)
    turns = None if together.turns is None else together.turns[order]
    return Rounded(together.vectors[order], turns, together.entropy[order]), firsts


def _batches(read: Iterator[Document]) -> Iterator[list[Document]]:
    while batch := list(itertools.islice(read, _READ_AT_ONCE)):
        yield batch


def _rounded(spec: VoterSpec, batch: list[Document]) -> tuple[Rounded, NDArray[np.uint64]]:
    texts = [one.text for one in batch]
    ids = np.array([one.unit_id for one in batch], np.uint64)
    if not texts:
        encoded = np.zeros((0, spec.similarity.dimension), np.float32)
    else:
        encoded = spec.encoder.encode(texts)
    structure = spec.similarity.structure_weight
    turns = turn_statistics(texts) if structure else np.zeros((len(texts), CELLS))
    return spec.similarity.documents(encoded, turns), ids
