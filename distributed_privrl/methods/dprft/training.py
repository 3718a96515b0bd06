"""Between the votes and the language model: the tuning, and the texts of the tuned model."""

import functools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from distributed_privrl.core.errors import ConfigError, UselessError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.ppo import PpoTrainer
from distributed_privrl.text.ppo_config import PpoConfig
from distributed_privrl.text.prompts import (
    InstructModel,
    Prompt,
    PromptTemplate,
    asked_prompts,
    document_prompts,
    templates,
)
from distributed_privrl.text.public_text import PublicDocument, excerpts, installed_documents
from distributed_privrl.text.scoring import Scorer
from distributed_privrl.text.stopping import StoppingRule

logger = logging.getLogger(__name__)
MODEL = "model"
_BATCH, _EXCERPT_WORDS = 64, 200
_FRUITLESS = 20
"""Batches in a row of which no text passes the gate, before writing is given up."""


def ppo_config(config: DprftConfig) -> PpoConfig:
    """Return how the model is tuned.

    Raises:
        ConfigError: an option is unknown.
    """
    training = config.training
    options = dict(training.options)
    try:
        if "stopping" in options:
            options["stopping"] = StoppingRule(**options["stopping"])
        return PpoConfig(
            steps=training.steps,
            prompts=training.prompts_per_step,
            samples=training.samples,
            most_tokens=training.most_tokens,
            **options,
        )
    except TypeError as error:
        raise ConfigError(f"training.options: {error}") from error


def prompt_template(config: DprftConfig) -> PromptTemplate:
    """Return the template of prompts.

    Raises:
        ConfigError: there is none of that name.
    """
    asked = config.training.prompts
    known = templates(asked.file)
    if asked.template not in known:
        raise ConfigError(
            f"training.prompts.template={asked.template}: choose one of {', '.join(known)}"
        )
    return known[asked.template]


def prompts_of(config: DprftConfig) -> list[Prompt]:
    """Return the prompts that steps draw from, of public knowledge alone.

    Raises:
        ConfigError: the template, its model or the packages do not give any.
    """
    asked, template = config.training.prompts, prompt_template(config)
    streams = Streams(config.seed).child("prompts")
    if asked.packages:
        documents = _manuals(asked.packages)
        return document_prompts(template, documents, asked.count, streams=streams)
    ask = None
    if asked.instruct is not None:
        ask = InstructModel(language=Language.load(asked.instruct), streams=streams)
    return asked_prompts(template, asked.count, ask=ask, streams=streams)


@functools.cache
def _manuals(packages: tuple[str, ...]) -> tuple[PublicDocument, ...]:
    """Return what packages say in prose: read once, since their files take seconds."""
    return excerpts(installed_documents(packages), words=_EXCERPT_WORDS)


def tune(config: DprftConfig, scorer: Scorer, folder: Path, *, told: Callable[[int], None]) -> None:
    """Tune the model by the scorer's rewards, and keep it in ``folder / MODEL``.

    Args:
        config: of the run.
        scorer: of the corpus.
        folder: of the training's checkpoint, which is gone on with.
        told: called with the steps taken.

    Privacy: post-processing of the scorer's answers.
    """
    trainer = PpoTrainer(
        Language.load(config.model.language),
        scorer,
        gate=Gate(**prompt_template(config).gate),
        prompts=prompts_of(config),
        config=ppo_config(config),
        streams=Streams(config.seed).child("tuning"),
    )
    outcome = trainer.train(folder, report=lambda metrics: told(metrics.step))
    if outcome.stopped:
        logger.warning("training ended after %d steps: %s", outcome.steps, outcome.stopped)


def write_texts(config: DprftConfig, folder: Path, path: Path, *, stream: str) -> None:
    """Write texts of the tuned model that pass the gate, a JSON object a line.

    Args:
        config: of the run.
        folder: of the training.
        path: of the file.
        stream: public one that they are drawn from.

    Raises:
        UselessError: the model's texts do not pass the gate.
    """
    lines = [
        json.dumps({"text": text}, ensure_ascii=False) for text in _texts(config, folder, stream)
    ]
    write_atomically(path, "\n".join(lines) + "\n")


def _texts(config: DprftConfig, folder: Path, stream: str) -> Iterator[str]:
    language, gate = Language.load(folder / MODEL), Gate(**prompt_template(config).gate)
    prompts, streams = prompts_of(config), Streams(config.seed).child(stream)
    left, fruitless, batch = config.output.size, 0, 0
    while left:
        drawn = streams.numpy(f"prompts {batch}").integers(len(prompts), size=_BATCH)
        chosen = [prompts[row] for row in drawn]
        texts = generate(
            language,
            [prompt.text for prompt in chosen],
            most_tokens=config.training.most_tokens,
            generator=torch.Generator().manual_seed(streams.integer(f"tokens {batch}")),
        ).texts
        passed = gate.passes(chosen, texts)
        kept = [text for text, good in zip(texts, passed, strict=True) if good][:left]
        yield from kept
        left, batch = left - len(kept), batch + 1
        fruitless = 0 if kept else fruitless + 1
        if fruitless == _FRUITLESS:
            raise UselessError(
                f"none of {_FRUITLESS * _BATCH} texts in a row passed the gate: the model writes"
                " nothing that its prompts ask for; raise most_tokens, or take another language"
            )
