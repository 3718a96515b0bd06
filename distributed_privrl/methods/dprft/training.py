"""Between the votes and the language model: the tuning, and the texts of the tuned model."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from distributed_privrl.core.errors import BudgetError
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.methods.dprft.evolution import (
    POPULATION,
    descendants,
    evolved,
)
from distributed_privrl.methods.dprft.language import language_of, watched_rows
from distributed_privrl.methods.dprft.steps import keep_step
from distributed_privrl.methods.dprft.writing import (
    drawn_texts,
    gate_of,
    loaded_language,
    prompt_template,
    prompts_of,
    write_passing,
)
from distributed_privrl.text.ppo import PpoTrainer
from distributed_privrl.text.ppo_config import PpoConfig
from distributed_privrl.text.scoring import NearestVotes, Scorer
from distributed_privrl.text.stopping import StepMetrics
from distributed_privrl.text.trl_config import TrlConfig
from distributed_privrl.text.trl_training import train_with_trl

logger = logging.getLogger(__name__)
MODEL = "model"


def ppo_config(config: DprftConfig) -> PpoConfig:
    """Return how the model is tuned."""
    training = config.training
    return PpoConfig(
        steps=training.steps,
        prompts=training.prompts_per_step,
        samples=training.samples,
        most_tokens=training.most_tokens,
        **training.options,
    )


def trl_config(config: DprftConfig, algorithm: Literal["grpo", "rloo"]) -> TrlConfig:
    """Return how trl tunes the model."""
    training = config.training
    return TrlConfig(
        algorithm=algorithm,
        steps=training.steps,
        prompts=training.prompts_per_step,
        samples=training.samples,
        most_tokens=training.most_tokens,
        **training.options,
    )


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

    Raises:
        BudgetError: what is left does not pay for all rounds; the population so far is kept.

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
    _check_refusal(outcome.refusal, config, outcome.iterations, folder / POPULATION)


def tune(config: DprftConfig, scorer: Scorer, folder: Path, *, told: Callable[[int], None]) -> None:
    """Tune the model by the scorer's rewards, and keep it in ``folder / MODEL``.

    What steps of proximal policy optimisation measured is kept beside it.

    Args:
        config: of the run.
        scorer: of the corpus.
        folder: of the training's checkpoint, which is gone on with.
        told: called with the steps taken.

    Raises:
        BudgetError: what is left does not pay for all steps; the model so far is kept.

    Privacy: post-processing of the scorer's answers.
    """
    template, by = prompt_template(config), config.training.by
    language, gate = language_of(config, template), gate_of(config)
    prompts, streams = prompts_of(config), Streams(config.seed).child("tuning")
    if by == "grpo" or by == "rloo":
        outcome = train_with_trl(
            language,
            scorer,
            gate=gate,
            prompts=prompts,
            config=trl_config(config, by),
            streams=streams,
            folder=folder,
            told=told,
        )
    else:
        how, rows = ppo_config(config), None
        if how.stopping.most_loss_rise is not None:
            rows = watched_rows(config, template, language)
        trainer = PpoTrainer(
            language,
            scorer,
            gate=gate,
            prompts=prompts,
            config=how,
            streams=streams,
            public_rows=rows,
        )

        def report(metrics: StepMetrics) -> None:
            keep_step(folder, metrics)
            told(metrics.step)

        outcome = trainer.train(folder, report=report)
    _check_refusal(outcome.refusal, config, outcome.steps, folder / MODEL)
    if outcome.stopped:
        logger.warning("training ended after %d steps: %s", outcome.steps, outcome.stopped)


def _check_refusal(
    refusal: BudgetError | None, config: DprftConfig, steps: int, kept: Path
) -> None:
    """End a run whose next query was refused, and say where what it has is kept."""
    if refusal is None:
        return
    raise BudgetError(
        f"{refusal}. What {steps} of {config.training.steps} steps made is kept in {kept}: --resume"
        " goes on with it and writes texts; all planned queries stay charged"
    ) from refusal


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
        drawn = drawn_texts(config, loaded_language(config, folder / MODEL), streams)
    write_passing(config, drawn, path)
