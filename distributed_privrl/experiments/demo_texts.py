"""The demo's corpus of texts, and what the tuned model's texts look like beside the untuned one's.

The corpus plays the private side: manuals of installed packages, a module a document.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from distributed_privrl.core.config import RunConfig, validate
from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.corpus_datasets import CorpusSchema, import_corpus
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.extra import text_package
from distributed_privrl.text.minilm import MiniLmEncoder, check_minilm
from distributed_privrl.text.public_text import PublicDocument, two_sides, write_documents
from distributed_privrl.text.scoring import Encoder
from distributed_privrl.text.similarity import Similarity, similarity

HELD_OUT = "held-out.jsonl"
COMPARISON = "comparison.json"
_SHOWN, _EVERY, _CELLS = 2, 6, 4096


@dataclass(frozen=True, kw_only=True)
class DemoCorpus:
    """Documents that play the private side.

    Args:
        dataset: that they become.
        private: packages that they are of.
        public: packages that share no paragraph with them.
        documents: of the corpus.
    """

    dataset: str
    private: tuple[str, ...]
    public: tuple[str, ...]
    documents: int


def make_corpus(corpus: DemoCorpus, out: Path, store: DatasetStore, *, progress: Progress) -> None:
    """Import the corpus, and write documents that it does not hold to ``out / HELD_OUT``.

    Every sixth document is held out.

    Raises:
        ConfigError: the packages have fewer documents.
        MissingExtraError: the extra ``text`` is not installed.
    """
    text_package("transformers")
    progress("reading manuals", 0, 1)
    _, found = two_sides(corpus.public, corpus.private)
    held, kept = _divided(found, corpus.documents)
    progress("reading manuals", 1, 1, f"{len(kept)} documents, {len(held)} held out")
    out.mkdir(parents=True, exist_ok=True)
    source = out / "corpus.jsonl"
    write_documents(source, kept)
    write_documents(out / HELD_OUT, held)
    schema = validate(CorpusSchema, {"text": {"unit": "document"}}, source="the demo's schema")
    import_corpus(source, schema, store, corpus.dataset)
    source.unlink()


def _divided(
    found: Sequence[PublicDocument], count: int
) -> tuple[list[PublicDocument], list[PublicDocument]]:
    """Return held-out documents and ``count`` others, spread over all."""
    others = [one for row, one in enumerate(found) if row % _EVERY]
    if len(others) < count:
        raise ConfigError(
            f"the packages of the demo's corpus have {len(found)} documents, which leaves"
            f" {len(others)} beside those held out: install the extra text anew, {count} are needed"
        )
    rows = np.linspace(0, len(others) - 1, count).round().astype(int)
    return list(found[::_EVERY]), [others[row] for row in rows]


def compare(config: RunConfig, out: Path, directory: RunDirectory) -> dict[str, str]:
    """Return lines that set the released texts beside as many of the model before its tuning.

    Both are compared with the held-out documents by an encoder that the reward did not use. The
    figures are kept in the run's ``private`` folder.

    Privacy: exact figures of documents that play private ones, for the owner alone. Which texts are
        compared is post-processing of the release.
    """
    from distributed_privrl.methods.dprft.config import UNTUNED, DprftConfig

    assert isinstance(config, DprftConfig)
    tuned, untuned, real = (
        _texts(directory.path / config.output.texts),
        _texts(directory.path / UNTUNED),
        _texts(out / HELD_OUT),
    )
    encoder, name = _judge()
    judged = encoder.encode(real)
    found = {
        "before its tuning": similarity(encoder.encode(untuned), judged),
        "after it": similarity(encoder.encode(tuned), judged),
        "of real texts": similarity(judged, judged, itself=True),
    }
    figures = {name: {"mean": one.mean, "maximum": one.maximum} for name, one in found.items()}
    write_atomically(
        directory.make_private() / COMPARISON, json.dumps(figures, indent=1, sort_keys=True) + "\n"
    )
    shown = {
        f"{name} {row + 1}": text.replace("\n", " ")
        for name, texts in (("text before", untuned), ("text after", tuned))
        for row, text in enumerate(texts[:_SHOWN])
    }
    return {**shown, "similarity to held-out texts": _line(found, name)}


def _judge() -> tuple[Encoder, str]:
    """Return the sentence encoder and its name, or one of hashed words where it is missing.

    That one has other cells than the reward's, but counts the same words.
    """
    try:
        check_minilm()
    except MissingExtraError:
        return HashedEncoder(dimension=_CELLS), "hashed words"
    return MiniLmEncoder(), "a sentence encoder"


def _line(found: dict[str, Similarity], name: str) -> str:
    said = ", ".join(f"{one.mean:.3f} {name}" for name, one in found.items())
    return (
        f"{said} (mean cosine by {name}, which the reward did not use; exact, so it stays in the"
        " run's private folder)"
    )


def _texts(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").split("\n")
    return [str(json.loads(line)["text"]) for line in lines if line]
