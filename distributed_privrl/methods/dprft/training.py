"""Between the votes and the language model: the tuning, and the texts of the tuned model."""

import itertools
import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from distributed_privrl.core.errors import ConfigError, UselessError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.config import DprftConfig, ProseConfig
from distributed_privrl.methods.dprft.evolution import (
    POPULATION,
    descendants,
    evolution_of,
    evolved,
)
from distributed_privrl.methods.dprft.language import language_of, public_documents
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
from distributed_privrl.text.scoring import NearestVotes, Scorer
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


def check_options(config: DprftConfig) -> None:
    """Refuse options that the training does not have.

    Raises:
        ConfigError: one is unknown.
    """
    if config.training.by == "aug_pe":
        evolution_of(config)
    else:
        ppo_config(config)


def is_done(folder: Path) -> bool:
    """Say whether a training in this folder has ended."""
    return (folder / MODEL).exists() or (folder / POPULATION).exists()


def choose(
    config: DprftConfig, votes: NearestVotes, folder: Path, *, told: Callable[[int], None]
) -> None:
    """Let texts evolve by votes, and keep them in ``folder / POPULATION``.

    Args:
        config: of the run.
        votes: of the corpus.
        folder: of the training.
        told: called with the rounds done.

    Privacy: post-processing of the answers.
    """
    outcome = evolved(
        config,
        language_of(config, prompt_template(config)),
        votes,
        folder / POPULATION,
        prompts=prompts_of(config),
        told=told,
    )
    if outcome.refusal is not None:
        logger.warning("texts evolved for %d rounds: %s", outcome.iterations, outcome.refusal)


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
    packages, language = asked.packages, config.model.language
    if not packages and not template.stages and isinstance(language, ProseConfig):
        packages = language.packages
    if packages:
        documents = public_documents(packages, _EXCERPT_WORDS)
        return document_prompts(template, documents, asked.count, streams=streams)
    ask = None
    if asked.instruct is not None:
        ask = InstructModel(language=Language.load(asked.instruct), streams=streams)
    return asked_prompts(template, asked.count, ask=ask, streams=streams)


def tune(config: DprftConfig, scorer: Scorer, folder: Path, *, told: Callable[[int], None]) -> None:
    """Tune the model by the scorer's rewards, and keep it in ``folder / MODEL``.

    Args:
        config: of the run.
        scorer: of the corpus.
        folder: of the training's checkpoint, which is gone on with.
        told: called with the steps taken.

    Privacy: post-processing of the scorer's answers.
    """
    template = prompt_template(config)
    trainer = PpoTrainer(
        language_of(config, template),
        scorer,
        gate=Gate(**template.gate),
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
    streams = Streams(config.seed).child(stream)
    if config.training.by == "aug_pe":
        language = language_of(config, prompt_template(config))
        drawn = descendants(config, language, folder / POPULATION, streams=streams)
    else:
        drawn = _drawn(config, Language.load(folder / MODEL), streams)
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in _passing(config, drawn)]
    write_atomically(path, "\n".join(lines) + "\n")


def untuned_texts(config: DprftConfig, *, stream: str) -> list[str]:
    """Return as many texts of the model before its tuning as a run releases, by the same gate.

    Args:
        config: of the run.
        stream: public one that they are drawn from.

    Raises:
        UselessError: the model's texts do not pass the gate.
    """
    language = language_of(config, prompt_template(config))
    return list(_passing(config, _drawn(config, language, Streams(config.seed).child(stream))))


_Batches = Iterator[tuple[list[Prompt], list[str]]]


def _drawn(config: DprftConfig, language: Language, streams: Streams) -> _Batches:
    """Yield prompts, and the model's texts for them, without end."""
    prompts = prompts_of(config)
    for batch in itertools.count():
        drawn = streams.numpy(f"prompts {batch}").integers(len(prompts), size=_BATCH)
        chosen = [prompts[row] for row in drawn]
        texts = generate(
            language,
            [prompt.text for prompt in chosen],
            most_tokens=config.training.most_tokens,
            generator=torch.Generator().manual_seed(streams.integer(f"tokens {batch}")),
        ).texts
        yield chosen, list(texts)


def _passing(config: DprftConfig, batches: _Batches) -> Iterator[str]:
    """Yield as many texts that pass the gate as the run releases."""
    gate = Gate(**prompt_template(config).gate)
    left, fruitless = config.output.size, 0
    for prompts, texts in batches:
        passed = gate.passes(prompts, texts)
        kept = [text for text, good in zip(texts, passed, strict=True) if good][:left]
        yield from kept
        left, fruitless = left - len(kept), 0 if kept else fruitless + 1
        if not left:
            return
        if fruitless == _FRUITLESS:
            raise UselessError(
                f"none of the texts of {_FRUITLESS} batches in a row passed the gate: the model"
                " writes nothing that its prompts ask for; raise most_tokens, or take another"
                " language"
            )
