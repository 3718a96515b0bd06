"""Group-relative policy optimisation and RLOO by trl, for models that need its machinery.

One process trains: trl calls the reward once a process and generation batch, and a scorer answers
one trainer.

References: Shao et al., "DeepSeekMath" (2024), section 4.1; Ahmadian et al., "Back to basics:
revisiting REINFORCE-style optimization" (2024), section 2.2.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.core.files import remove_folder
from distributed_privrl.core.random import Streams
from distributed_privrl.text.extra import text_package
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.language import Language
from distributed_privrl.text.ppo_config import Outcome
from distributed_privrl.text.pretraining import keep
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.scoring import Scorer

_BEFORE = "before"
"""Folder of the model before training, while it is trained."""


@dataclass(frozen=True, kw_only=True)
class TrlConfig:
    """How trl tunes a model.

    Args:
        algorithm: ``grpo`` or ``rloo``.
        steps: batches that are scored.
        prompts: of a step.
        samples: completions of a prompt, two or more.
        most_tokens: of a completion.
        epochs: times that a step goes over its samples.
        minibatch: samples that are computed at once; it divides those of a step.
        learning_rate: of AdamW.
        clip_range: of the ratio of probabilities.
        kl_weight: price of a nat.
        temperature: of the draws.
        bf16: numbers of half the length, on a GPU that has them.
    """

    algorithm: Literal["grpo", "rloo"] = "grpo"
    steps: int = 100
    prompts: int = 64
    samples: int = 2
    most_tokens: int = 512
    epochs: int = 1
    minibatch: int = 16
    learning_rate: float = 1e-6
    clip_range: float = 0.2
    kl_weight: float = 0.05
    temperature: float = 1.0
    bf16: bool = False

    def __post_init__(self) -> None:
        if self.prompts * self.samples % self.minibatch or self.samples < 2:
            raise ConfigError(
                f"minibatch {self.minibatch} must divide prompts x samples ="
                f" {self.prompts} x {self.samples}, and samples be two or more"
            )


def train_with_trl(
    language: Language,
    scorer: Scorer,
    *,
    gate: Gate,
    prompts: Sequence[Prompt],
    config: TrlConfig,
    streams: Streams,
    folder: Path,
) -> Outcome:
    """Tune a model in place and keep it in the folder ``model``.

    A training that was killed does not go on: trl's draws come from generators of the whole
    process, so other texts would be scored and charged. `ppo.PpoTrainer` does.

    Args:
        language: trained in place.
        scorer: asked once a step, about the samples that passed the gate.
        gate: public checks.
        prompts: public ones.
        config: how.
        streams: public randomness.
        folder: of the model.

    Raises:
        ConfigError: there are no prompts, or several processes train.
        MissingExtraError: trl or datasets is not installed.
        StorageError: the folder cannot be written.
        UnsafeError: trl asks for scores in an evaluation.
    """
    if not prompts:
        raise ConfigError("prompts must hold at least one, got none")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("several processes train, and one alone may ask for scores: start one")
    trl, datasets = text_package("trl"), text_package("datasets")
    reward = GatedReward(scorer, gate, prompts)
    made = trl.GRPOTrainer if config.algorithm == "grpo" else trl.RLOOTrainer
    keep(language, folder / _BEFORE)  # trl reads its reference from where a model comes from
    language.model.config._name_or_path = str(folder / _BEFORE)
    with torch.random.fork_rng():
        trainer = made(
            model=language.model,
            reward_funcs=reward,
            args=_arguments(trl, config, streams, folder),
            train_dataset=datasets.Dataset.from_dict({"prompt": [one.text for one in prompts]}),
            processing_class=language.tokenizer,
        )
        reward.training = lambda: bool(trainer.model.training)
        outcome = Outcome(steps=config.steps)
        try:
            trainer.train()
        except BudgetError as refusal:
            done = trainer.state.global_step // config.epochs
            outcome = Outcome(steps=done, stopped="the budget is spent", refusal=refusal)
    language.model.eval()
    remove_folder(folder / _BEFORE)
    keep(language, folder / "model")
    return outcome


class GatedReward:
    """A reward function of trl: the gate first, then the scorer; failed samples are not scored.

    Args:
        scorer: asked once a call.
        gate: public checks.
        prompts: all that may come.

    Attributes:
        training: tells whether the model is trained now; without it nothing is scored.
    """

    __name__ = "noisy_scores"

    def __init__(self, scorer: Scorer, gate: Gate, prompts: Sequence[Prompt]) -> None:
        self._scorer, self._gate = scorer, gate
        self._prompts = {prompt.text: prompt for prompt in prompts}
        self.training: Callable[[], bool] = lambda: False

    def __call__(self, *, prompts: list[str], completions: list[str], **_: Any) -> list[float]:
        """Return the reward of each completion.

        Raises:
            BudgetError: the scorer refuses.
            UnsafeError: the model is not being trained: an evaluation must not spend the budget.
        """
        if not self.training():
            raise UnsafeError("an evaluation asked for scores, which only training may pay for")
        texts = [one.strip() for one in completions]
        passed = self._gate.passes([self._prompts[one] for one in prompts], texts)
        kept = [text for text, good in zip(texts, passed, strict=True) if good]
        scores = self._scorer.score(kept) if kept else np.zeros(0)
        return [float(one) for one in self._gate.rewards(scores, passed)]


def _arguments(trl: Any, config: TrlConfig, streams: Streams, folder: Path) -> Any:
    parts = config.prompts * config.samples // config.minibatch
    common = {
        "output_dir": str(folder / "trl"),
        "max_steps": config.steps * config.epochs,
        "per_device_train_batch_size": config.minibatch,
        "gradient_accumulation_steps": parts,
        "steps_per_generation": parts,
        "num_generations": config.samples,
        "num_iterations": config.epochs,
        "max_completion_length": config.most_tokens,
        "learning_rate": config.learning_rate,
        "epsilon": config.clip_range,
        "beta": config.kl_weight,
        "temperature": config.temperature,
        "bf16": config.bf16,
        "use_cpu": not torch.cuda.is_available(),
        "seed": streams.integer("trl") % 2**31,
        "save_strategy": "no",
        "logging_strategy": "no",
        "eval_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "gradient_checkpointing": torch.cuda.is_available(),
    }
    if config.algorithm == "grpo":
        return trl.GRPOConfig(**common, scale_rewards="batch")
    return trl.RLOOConfig(**common)
