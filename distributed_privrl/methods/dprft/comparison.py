"""Released texts beside the documents, for the owner's report: a worker alone opens these.

Reference: DP-RFT, sections 4.1 and 6.1.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.random import Streams
from distributed_privrl.data.corpus import CorpusRef, documents
from distributed_privrl.data.corpus_datasets import corpus_of
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.methods.dprft.config import UNTUNED, TextConfig
from distributed_privrl.text.compared import Comparison, compare
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.text_measures import Copies, copies

TITLE = "The texts beside the documents"
BEFORE = "Texts of the model before its training, beside the documents"
_MOST, _DIMENSION, _COPIED = 1_000, 1024, 8
"""Texts of a side that are compared, numbers of a vector, and words of a copy."""
_FOREIGN = 2
"""Times as many words that no document has as documents themselves have are told to the owner."""
_LONGEST = 20_000
"""Characters of a document that stands for texts: one of a hundred million would fill memory."""
_NEARER = {"similarity": 1, "nearest": 1, "frechet": -1, "foreign_words": -1}
"""Figures by which texts should be nearer than those of the model before: 1, more is nearer."""
_READ = {"similarity": "more is nearer", "nearest": "more is nearer", "frechet": "less is nearer"}
_READ |= dict.fromkeys(("nearest_jaccard", "most_jaccard"), "1: the same words")
_READ |= dict.fromkeys(("words", "turns", "turn_words"), "0: as in documents")
_READ |= {"duplicates": "less is better", "foreign_words": "less is better"}
"""How a figure is read."""
_NAMES = {
    "similarity": "mean similarity",
    "nearest": "similarity with the nearest document, mean",
    "nearest_jaccard": "words shared with the nearest document, mean",
    "most_jaccard": "words shared with the nearest document, at most",
    "frechet": "Frechet distance",
    "words": "distance of words of a text",
    "turns": "distance of turns of a text",
    "turn_words": "distance of words of a turn",
    "duplicates": "texts that an earlier one equals",
    "foreign_words": "words that none of these documents has",
}


@dataclass(frozen=True, kw_only=True)
class ComparisonSpec:
    """What a worker compares.

    Args:
        corpus: where documents lie.
        texts: released ones.
        untuned: of the model before its training; fewer than two are not compared.
        seed: of the documents and texts that are drawn, where there are more than are compared.
    """

    corpus: CorpusRef
    texts: tuple[str, ...]
    untuned: tuple[str, ...] = ()
    seed: int


@dataclass(frozen=True, kw_only=True)
class Compared:
    """Exact figures of texts, or of documents in their place, beside documents.

    Args:
        likeness: of up to 1,000 of each.
        copied: from all documents.
    """

    likeness: Comparison
    copied: Copies


@dataclass(frozen=True, kw_only=True)
class Comparisons:
    """What stands beside documents.

    Args:
        own: released texts.
        reference: other documents.
        before: texts of the model before its training, if there are any.
    """

    own: Compared
    reference: Compared
    before: Compared | None


class TextComparer:
    """Compares texts with a corpus: a worker.

    Privacy: its figures are exact, for ``private/`` alone; no word of a document is among them.
    """

    def __init__(self, spec: ComparisonSpec) -> None:
        self._spec = spec

    def compared(self) -> Comparisons:
        """Return what texts are beside documents, and what some documents are beside others.

        Raises:
            ConfigError: there are fewer than four documents or two texts, or they have no words.
            StorageError: documents cannot be read.
        """
        streams = Streams(self._spec.seed).child("comparison")
        number = sum(1 for _ in self._documents())
        rows = streams.numpy("documents").permutation(number)[:_MOST].tolist()
        kept = dict.fromkeys(rows, "")
        kept |= {row: text for row, text in enumerate(self._documents()) if row in kept}
        encoder = HashedEncoder(dimension=_DIMENSION)

        untuned = self._spec.untuned if len(self._spec.untuned) > 1 else ()
        most = min(_MOST, len(untuned) or _MOST)  # as many of both, which figures depend on

        def held(texts: Sequence[str]) -> Compared:
            drawn = streams.numpy("texts").permutation(len(texts))[:most].tolist()
            return Compared(
                likeness=compare([texts[row] for row in drawn], list(kept.values()), encoder),
                copied=copies(texts, self._documents(), words=_COPIED),
            )

        half = {row: kept[row][:_LONGEST] for row in rows[::2]}
        others = [kept[row] for row in rows[1::2]]
        reference = Compared(
            likeness=compare(list(half.values()), others, encoder),
            copied=copies(list(half.values()), self._documents(half), words=_COPIED),
        )
        before = held(untuned) if untuned else None
        return Comparisons(own=held(self._spec.texts), reference=reference, before=before)

    def _documents(self, without: Collection[int] = ()) -> Iterator[str]:
        found = enumerate(documents(self._spec.corpus))
        return (one.text for row, one in found if row not in without)


def comparison_sections(
    config: TextConfig, store: DatasetStore, path: Path, executor: Executor
) -> list[Section]:
    """Return what the owner is told of texts beside documents.

    Args:
        config: of the run.
        store: where the corpus lies.
        path: of the texts.
        executor: of the worker that opens the documents.

    Raises:
        ConfigError: as `TextComparer.compared`.
        StorageError: likewise.

    Privacy: exact figures of documents: for private reports alone. The calling process opens no
        document.
    """
    untuned = path.with_name(UNTUNED)
    spec = ComparisonSpec(
        corpus=corpus_of(store, config.data.sensitive),
        texts=tuple(read_texts(path)),
        untuned=tuple(read_texts(untuned)) if untuned.exists() else (),
        seed=config.seed,
    )
    group = executor.start(TextComparer, [spec], repeat_lost_calls=True)
    try:
        (found,) = group.call("compared")
    finally:
        group.close()
    return _sections(found)


def read_texts(path: Path) -> list[str]:
    """Return the texts of a run's file."""
    return [json.loads(line)["text"] for line in path.read_text(encoding="utf-8").splitlines()]


def _sections(found: Comparisons) -> list[Section]:
    own, reference, before = found.own, found.reference, found.before
    compared = Section(
        title=TITLE,
        explanation="Beside each figure stands that of real documents held against other ones. Up"
        f" to {_MOST:,} of each side are compared by counts of words and pairs of words; copies,"
        f" {_COPIED} words in a row or more, are looked for in all documents. Words shared are"
        " Jaccard similarities, distances those between the quantiles of both sides.",
        metrics=_metrics(own, reference),
        notes=[
            *_of_copies(own.copied, reference.copied),
            *_of_words(own.likeness, reference.likeness),
            *([] if before is None else _of_training(own.likeness, before.likeness)),
        ],
    )
    if before is None:
        return [compared]
    explanation = (
        "The same figures of texts that nobody's documents led to: beside them the released ones"
        " have gained or lost. They pass the same gate, and as many of both are compared."
    )
    metrics = _metrics(before, reference)
    return [compared, Section(title=BEFORE, explanation=explanation, metrics=metrics)]


def _metrics(own: Compared, reference: Compared) -> list[Metric]:
    metrics = [
        Metric(
            name=_NAMES[one.name],
            value=getattr(own.likeness, one.name),
            reference=getattr(reference.likeness, one.name),
            explanation=_READ[one.name],
        )
        for one in fields(Comparison)
    ]
    mine, its = own.copied, reference.copied
    return [
        *metrics,
        Metric(name="texts with copied words", value=mine.texts, reference=its.texts),
        Metric(name="copied words", value=mine.words, reference=its.words),
        Metric(name="words of the longest copy", value=mine.longest, reference=its.longest),
    ]


def _of_training(own: Comparison, before: Comparison) -> list[str]:
    """Return by which figures texts are nearer to documents than those of the model before."""
    gains = {
        _NAMES[name]: sign * (getattr(own, name) - getattr(before, name))
        for name, sign in _NEARER.items()
    }
    better = [name for name, gain in gains.items() if gain > 0]
    worse = [name for name, gain in gains.items() if gain <= 0]
    if not worse:
        return []
    nearer = f"by {', by '.join(better)} they are; " if better else ""
    return [
        f"The texts are no nearer to the documents than those of the model before its training by"
        f" {', by '.join(worse)}: {nearer}what is no nearer has cost epsilon for nothing"
    ]


def _of_words(mine: Comparison, its: Comparison) -> list[str]:
    """Return a note where far more words are foreign to documents than their own are."""
    if mine.foreign_words <= _FOREIGN * its.foreign_words:
        return []
    return [
        f"{mine.foreign_words:.2%} of the words of the texts stand in none of the documents that"
        f" they are held against, of documents' own {its.foreign_words:.2%}: read some texts. A"
        " small model, or one that its tuning broke, writes words that nobody has, and no figure of"
        " nearness shows it"
    ]


def _of_copies(mine: Copies, its: Copies) -> list[str]:
    """Return a note where texts have more copies than documents have of one another."""
    if mine.texts <= its.texts and mine.longest <= its.longest:
        return []
    return [
        f"{mine.texts:.2%} of the texts repeat {_COPIED} words or more in a row of a document, at"
        f" most {mine.longest}; of documents {its.texts:.2%} repeat others, at most {its.longest}"
        " words. What everybody writes is among them. The guarantee holds whatever stands here"
    ]
