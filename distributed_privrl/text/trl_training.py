"""Group-relative policy optimisation and RLOO by trl, for models that need its machinery.

One process trains: trl calls the reward once a process and generation batch, and a scorer answers
one trainer.

References: Shao et al., "DeepSeekMath" (2024), section 4.1; Ahmadian et al., "Back to basics:
revisiting REINFORCE-style optimization" (2024), section 2.2.
"""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from distributed_privrl.core.errors import BudgetError, ConfigError, StorageError, UnsafeError
from distributed_privrl.core.files import remove_folder, storage_errors, write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.text.extra import text_package
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.language import Language
from distributed_privrl.text.ppo_config import Outcome
from distributed_privrl.text.pretraining import keep
from distributed_privrl.text.prompts import Prompt, drawn_prompts
from distributed_privrl.text.scoring import Scorer
from distributed_privrl.text.trl_config import TrlConfig

_BEFORE, _CHECKPOINTS, _OF = "before", "trl", "training.json"
"""Folders of the model before training and of trl's checkpoints, and what they are of."""
_WHOLE = "trainer_state.json"
"""What trl writes into a checkpoint last."""
_Said = str | list[dict[str, str]]
"""A text, or the messages of a chat."""


def check_machinery() -> None:
    """Refuse to train where trl is missing, or where several processes would.

    Raises:
        ConfigError: several processes train.
        MissingExtraError: trl or datasets is not installed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ConfigError("several processes train, and one alone may ask for scores: start one")
    for name in ("trl", "datasets"):
        text_package(name)


def train_with_trl(
    language: Language,
    scorer: Scorer,
    *,
    gate: Gate,
    prompts: Sequence[Prompt],
    config: TrlConfig,
    streams: Streams,
    folder: Path,
    told: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Tune a model in place and keep it in the folder ``model``.

    A training that was killed goes on at trl's last checkpoint, which holds the state of its
    generators: steps since then are made again with the same texts, whose scores the scorer has
    stored. Where a GPU rounds otherwise the second time, texts differ, and are paid for anew.

    Args:
        language: as it is before training; trained in place, where it is.
        scorer: asked once a step, about the samples that passed the gate.
        gate: public checks.
        prompts: public ones.
        config: how.
        streams: public randomness.
        folder: of checkpoints, and in the end of the model.
        told: called with the steps taken.

    Raises:
        ConfigError: there are no prompts, or several processes train.
        MissingExtraError: trl or datasets is not installed.
        StorageError: the folder cannot be written, or holds another training.
        UnsafeError: trl asks for scores in an evaluation.
    """
    if not prompts:
        raise ConfigError("prompts must hold at least one, got none")
    check_machinery()
    trl, datasets = text_package("trl"), text_package("datasets")
    reward = GatedReward(scorer, gate, prompts)
    made = trl.GRPOTrainer if config.algorithm == "grpo" else trl.RLOOTrainer
    _check_same(folder, repr((config, streams.seed, list(prompts))))
    keep(language, folder / _BEFORE)  # trl reads its reference from where a model comes from
    language.model.config._name_or_path = str(folder / _BEFORE)
    with torch.random.fork_rng():
        trainer = made(
            model=language.model,
            reward_funcs=reward,
            args=_arguments(trl, config, streams, folder, on_cpu=language.device.type == "cpu"),
            train_dataset=datasets.Dataset.from_dict(
                {
                    "prompt": [
                        language.asked(one.text) for one in _in_order(prompts, config, streams)
                    ]
                }
            ),
            processing_class=language.tokenizer,
            callbacks=[_teller(config, told)],
        )
        trainer.remove_callback(text_package("transformers").PrinterCallback)  # it tells times
        reward.training = lambda: bool(trainer.model.training)
        outcome = Outcome(steps=config.steps)
        try:
            trainer.train(resume_from_checkpoint=_last_checkpoint(folder))
        except BudgetError as refusal:
            done = trainer.state.global_step // config.epochs
            outcome = Outcome(steps=done, stopped="the budget is spent", refusal=refusal)
    language.model.eval()
    keep(language, folder / "model")
    for needless in (_BEFORE, _CHECKPOINTS):
        remove_folder(folder / needless)
    return outcome


def _check_same(folder: Path, facts: str) -> None:
    """Write down what the training is of, and refuse to go on with another one."""
    path, digest = folder / _OF, hashlib.sha256(facts.encode()).hexdigest()
    with storage_errors(f"read {path}"):
        if path.exists() and json.loads(path.read_text()) != digest:
            raise StorageError(f"{folder} holds another training: take another folder")
    write_atomically(path, json.dumps(digest) + "\n")


def _in_order(prompts: Sequence[Prompt], config: TrlConfig, streams: Streams) -> list[Prompt]:
    """Return the prompts of all steps: trl's own order would begin anew after a kill."""
    found = list[Prompt]()
    for step in range(config.steps):
        found += drawn_prompts(prompts, config.prompts, streams.numpy(f"prompts {step}"))
    return found


def _last_checkpoint(folder: Path) -> str | None:
    """Return the last checkpoint that was written to its end; None: there is none."""
    whole = [one.parent for one in (folder / _CHECKPOINTS).glob(f"checkpoint-*/{_WHOLE}")]
    last = max(whole, key=lambda one: int(one.name.rpartition("-")[2]), default=None)
    return None if last is None else str(last)


def _teller(config: TrlConfig, told: Callable[[int], None]) -> Any:
    """Return what tells of each step, once all its epochs are done."""

    class Teller(text_package("transformers").TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            if state.global_step % config.epochs == 0:
                told(state.global_step // config.epochs)

    return Teller()


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

    def __call__(
        self, *, prompts: Sequence[_Said], completions: Sequence[_Said], **_: Any
    ) -> list[float]:
        """Return the reward of each completion.

        Args:
            prompts: of `prompts`, or the messages of a chat that end in one.
            completions: texts, or messages of a model with a chat template.

        Raises:
            BudgetError: the scorer refuses.
            UnsafeError: the model is not being trained: an evaluation must not spend the budget.
        """
        if not self.training():
            raise UnsafeError("an evaluation asked for scores, which only training may pay for")
        texts = [_said(one).strip() for one in completions]
        passed = self._gate.passes([self._prompts[_said(one)] for one in prompts], texts)
        kept = [text for text, good in zip(texts, passed, strict=True) if good]
        scores = self._scorer.score(kept) if kept else np.zeros(0)
        return [float(one) for one in self._gate.rewards(scores, passed)]


def _said(one: _Said) -> str:
    """Return a text, or that of the last message of a chat."""
    return one if isinstance(one, str) else one[-1]["content"]


def _arguments(trl: Any, config: TrlConfig, streams: Streams, folder: Path, *, on_cpu: bool) -> Any:
    parts = config.prompts * config.samples // config.at_once
    common = {
        "output_dir": str(folder / _CHECKPOINTS),
        "max_steps": config.steps * config.epochs,
        "per_device_train_batch_size": config.at_once,
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
        "use_cpu": on_cpu,
        "seed": streams.integer("trl") % 2**31,
        "shuffle_dataset": False,
        "save_strategy": "steps",
        "save_steps": config.checkpoint_every * config.epochs,  # never between two epochs of a step
        "save_total_limit": 1,
        "logging_strategy": "no",
        "eval_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "gradient_checkpointing": not on_cpu,
    }
    if config.algorithm == "grpo":
        return trl.GRPOConfig(**common, scale_rewards="batch")
    return trl.RLOOConfig(**common)
