"""Prose that stands for what is public and what is private, and a small model of the public one.

Packages of one family are public, those of another private. Documents are excerpts of modules'
docstrings; no module is both in the corpus and among the held-out texts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import yaml

from benchmarks import cells
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.data.corpus_datasets import CorpusSchema, CorpusTexts, import_corpus
from distributed_privrl.text.language import Language, SmallModelConfig
from distributed_privrl.text.pretraining import PretrainingConfig, keep, pretrained
from distributed_privrl.text.prompts import PromptTemplate, described, templates
from distributed_privrl.text.public_text import (
    PUBLIC_PACKAGES,
    PublicDocument,
    excerpts,
    read_documents,
    two_sides,
    write_documents,
)

DATASET, TEMPLATE = "text/private-v0", "short"
_LEAST_WORDS = 10


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is done: by default as many documents and votes as DP-RFT's first trial here had.

    Args:
        public: packages of the public side.
        private: packages of the private side.
        prompted: public packages that give topics and keywords.
        documents: most documents of the corpus.
        held_out: documents that judge.
        words: most words of an excerpt.
        length_within: most words by which a text may miss the length that its prompt names.
        model: of the small language model.
        pretraining: its gradient steps.
        steps: batches that are scored.
        prompts: of a batch, each with two samples.
        most_tokens: of a text.
        texts: of each row of the table.
        clip_norm: of a document's centred votes.
        iterations: of Aug-PE.
        rounds: of fine-tuning.
        delta: of each cell.
    """

    public: tuple[str, ...] = PUBLIC_PACKAGES
    private: tuple[str, ...] = ("networkx", "sympy")
    prompted: tuple[str, ...] = ("numpy", "scikit-learn")
    documents: int = 4000
    held_out: int = 400
    words: int = 24
    length_within: int = 8
    model: SmallModelConfig = field(
        default_factory=lambda: SmallModelConfig(
            vocabulary=1024, context=80, width=128, layers=2, heads=4
        )
    )
    pretraining: int = 2500
    steps: int = 100
    prompts: int = 64
    most_tokens: int = 36
    texts: int = 192
    clip_norm: float = 0.5
    iterations: int = 10
    rounds: tuple[tuple[str, object], ...] = (
        ("rounds", 20),
        ("expected_batch_size", 256),
        ("clip_norm", 1.0),
        ("optimiser", {"learning_rate": 1e-3, "schedule": "cosine", "ema_decay": 0.0}),
    )
    delta: float = 1e-5


QUICK = Sizes(
    public=("gymnasium",),
    private=("opacus",),
    prompted=("gymnasium",),
    documents=60,
    held_out=20,
    words=20,
    length_within=20,  # a model of two steps knows nothing of lengths
    model=SmallModelConfig(vocabulary=384, context=64, width=16, layers=1, heads=1),
    pretraining=2,
    steps=1,
    prompts=4,
    most_tokens=32,
    texts=6,
    iterations=1,
    rounds=(("rounds", 2), ("expected_batch_size", 8)),
)


@dataclass(frozen=True, kw_only=True)
class Sides:
    """Both sides, in a work folder: what is there already is read.

    Args:
        work: the folder.
        sizes: how much.
        seed: public one, of the division and of the model.
    """

    work: Path
    sizes: Sizes
    seed: int

    @property
    def language(self) -> Path:
        """Folder of the folder of the model."""
        return self.work / "language"

    @property
    def template_file(self) -> Path:
        """File of the template of prompts."""
        return self.work / "template.yaml"

    @cached_property
    def public(self) -> tuple[PublicDocument, ...]:
        """Excerpts of the public side."""
        return self._excerpts(read_documents(self.work / "public.jsonl"))

    @cached_property
    def private(self) -> tuple[str, ...]:
        """The corpus."""
        return tuple(one.text for one in self._divided[1][: self.sizes.documents])

    @cached_property
    def held_out(self) -> tuple[str, ...]:
        """Texts of modules that the corpus does not have."""
        return tuple(one.text for one in self._divided[0])

    @property
    def template(self) -> PromptTemplate:
        """Of the prompts."""
        return templates(self.template_file)[TEMPLATE]

    def prepare(self) -> None:
        """Make what is missing: documents, corpus, template and model.

        Privacy: both sides are public texts; one is taken for private.
        """
        if not (self.work / "private.jsonl").exists():
            public, private = two_sides(self.sizes.public, self.sizes.private)
            write_documents(self.work / "public.jsonl", public)
            write_documents(self.work / "private.jsonl", private)
        if not self.template_file.exists():
            write_atomically(self.template_file, yaml.safe_dump({TEMPLATE: self._short}))
        if DATASET not in cells.store_of(self.work).ids():
            path = self.work / "corpus.jsonl"
            write_documents(path, self._divided[1][: self.sizes.documents])
            schema = CorpusSchema(text=CorpusTexts())
            import_corpus(path, schema, cells.store_of(self.work), DATASET)
        if not (self.language / "model").exists():
            keep(self._pretrained(), self.language / "model")

    def _pretrained(self) -> Language:
        return pretrained(
            self.language,
            described(self.template, self.public),
            config=PretrainingConfig(
                model=self.sizes.model, steps=self.sizes.pretraining, batch=16
            ),
            streams=Streams(self.seed).child("language"),
        )

    @property
    def _short(self) -> dict[str, object]:
        """The package's template for small models, with lengths of an excerpt."""
        words = self.sizes.words
        prose = templates()["prose"].model_dump(exclude_defaults=True)
        lengths = {"low": words // 3, "high": words, "multiple": words // 3}
        gate = {**prose["gate"], "length_within": self.sizes.length_within, "least_words": 3}
        return prose | {"lengths": lengths, "gate": gate}

    def _excerpts(self, documents: Sequence[PublicDocument]) -> tuple[PublicDocument, ...]:
        cut = excerpts(documents, words=self.sizes.words)
        return tuple(one for one in cut if len(one.text.split()) >= _LEAST_WORDS)

    @cached_property
    def _divided(self) -> tuple[list[PublicDocument], list[PublicDocument]]:
        """Return held-out documents and the corpus, which share no module."""
        found = self._excerpts(read_documents(self.work / "private.jsonl"))
        by_module: dict[str, list[PublicDocument]] = {}
        for one in found:
            by_module.setdefault(one.module, []).append(one)
        generator, names = Streams(self.seed).numpy("division"), sorted(by_module)
        held, rest = list[PublicDocument](), list[PublicDocument]()
        for row in generator.permutation(len(names)):
            side = held if len(held) < self.sizes.held_out else rest
            side += by_module[names[row]]
        return held, [rest[row] for row in generator.permutation(len(rest))]
