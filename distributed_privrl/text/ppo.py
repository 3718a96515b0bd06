"""Proximal policy optimisation of a language model on scores of its texts (DP-RFT, section 3).

A step: draw prompts, write completions, let the gate judge them, have those that passed scored,
and take some gradient steps on the clipped surrogate. Every draw of a step comes from streams named
after it, so that a training which goes on at a checkpoint ends at the same bits.
"""

import hashlib
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import BudgetError, ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.generation import Completions, generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.policy import Judged, PolicyWithValue, frozen_copy, parts_of, rows_of
from distributed_privrl.text.ppo_config import Outcome, PpoConfig
from distributed_privrl.text.ppo_losses import (
    clipped_policy_loss,
    clipped_value_loss,
    divergence,
    generalised_advantages,
    masked_mean,
    mixed_scores,
    next_kl_weight,
    token_rewards,
    whitened,
)
from distributed_privrl.text.pretraining import keep, public_loss
from distributed_privrl.text.prompts import Prompt, drawn_prompts
from distributed_privrl.text.scoring import Scorer
from distributed_privrl.text.states import TrainingState, load_state, save_state
from distributed_privrl.text.stopping import StepMetrics, StoppingRule

_STATE, _MODEL, _HEALTHY = "training.safetensors", "model", "healthy"


class _Rollout(NamedTuple):
    completions: Completions
    old: Judged
    advantages: Tensor
    returns: Tensor
    rewards: NDArray[np.float64]
    passed: NDArray[np.bool_]
    kl: float


class PpoTrainer:
    """Tunes a model by a scorer's rewards.

    Args:
        language: trained in place.
        scorer: asked once a step, about the samples that passed the gate; nothing else reaches it.
        gate: public checks.
        prompts: public ones, drawn evenly.
        config: how.
        streams: public randomness.
        public_rows: rows of public text, as `pretraining.packed` makes them, on which the loss is
            watched; None: it is not.

    Raises:
        ConfigError: there are no prompts.
    """

    def __init__(
        self,
        language: Language,
        scorer: Scorer,
        *,
        gate: Gate,
        prompts: Sequence[Prompt],
        config: PpoConfig,
        streams: Streams,
        public_rows: NDArray[np.int64] | None = None,
    ) -> None:
        if not prompts:
            raise ConfigError("prompts must hold at least one, got none")
        self._language, self._scorer, self._gate = language, scorer, gate
        self._prompts, self._config, self._streams = list(prompts), config, streams
        self._public_rows = public_rows
        self._reference = frozen_copy(language)
        self._policy = PolicyWithValue(language)
        self._optimiser = torch.optim.Adam(
            self._policy.parameters(), lr=config.learning_rate, eps=1e-5
        )
        self._kl_weight, self._strikes = config.kl_weight, 0
        self._first_loss = math.nan
        self._of = ""

    def train(
        self, folder: Path, *, report: Callable[[StepMetrics], None] = lambda _: None
    ) -> Outcome:
        """Train to the end, or until the budget or a limit ends it, and keep the model.

        A folder with a checkpoint of this training is gone on with: steps since then are made again
        with the same texts, whose scores the scorer has stored.

        Args:
            folder: holds the checkpoint, and in the end the model.
            report: told of each step.

        Raises:
            ConfigError: the scorer does not give each text one finite number.
            StorageError: the folder cannot be written, or holds another training.
        """
        state, outcome = self._begin(folder), None
        for step in range(state.step, self._config.steps):
            try:
                metrics = self._step(step)
            except BudgetError as refusal:
                outcome = Outcome(steps=step, stopped="the budget is spent", refusal=refusal)
                break
            report(metrics)
            limit = self._limit(metrics)
            if not limit and (step + 1) % self._config.checkpoint_every == 0:
                limit = self._check(folder, step + 1)
            if limit:
                outcome = self._back(folder, step + 1, limit)
                break
        keep(self._language, folder / _MODEL)
        return outcome or Outcome(steps=self._config.steps)

    def _begin(self, folder: Path) -> TrainingState:
        path = folder / _STATE
        facts = repr((self._config, self._streams.seed, self._prompts))
        self._of = hashlib.sha256(facts.encode()).hexdigest()
        self._first_loss = self._loss()
        if not path.exists():
            return TrainingState(step=0, of=self._of)
        state = load_state(path, self._policy, self._optimiser, of=self._of)
        self._kl_weight = state.numbers["kl_weight"]
        self._strikes = int(state.numbers["strikes"])
        return state

    def _step(self, step: int) -> StepMetrics:
        config, began = self._config, time.perf_counter()
        weight = self._kl_weight
        prompts = self._drawn_prompts(step)
        completions = generate(
            self._language,
            [prompt.text for prompt in prompts],
            most_tokens=config.most_tokens,
            temperature=config.temperature,
            generator=self._generator(f"tokens {step}"),
        )
        written = time.perf_counter()
        passed = self._gate.passes(prompts, completions.texts)
        texts = [text for text, good in zip(completions.texts, passed, strict=True) if good]
        scores = self._scores(texts)
        scored = time.perf_counter()
        rollout = self._judged(completions, scores, passed)
        losses = self._update(rollout, step)
        if config.kl_target is not None:
            self._kl_weight = next_kl_weight(
                weight,
                kl=rollout.kl,
                target=config.kl_target,
                gain=config.kl_gain,
                least=config.kl_weight,
            )
        generating, updating = written - began, time.perf_counter() - scored
        mask = completions.mask
        return StepMetrics(
            step=step + 1,
            reward=float(rollout.rewards.mean()) if len(texts) else math.nan,
            gate_rate=float(passed.mean()),
            kl=rollout.kl,
            kl_weight=weight,
            entropy=float(masked_mean(rollout.old.entropies, mask)),
            tokens=float(mask.sum(1).float().mean()),
            distinct=len(set(completions.texts)) / len(completions.texts),
            policy_loss=losses[0],
            value_loss=losses[1],
            generation_share=generating / (generating + updating),
        )

    def _scores(self, texts: Sequence[str]) -> NDArray[np.float64]:
        if not texts:
            return np.zeros(0)
        scores = self._scorer.score(texts)
        if scores.shape != (len(texts),) or not np.isfinite(scores).all():
            raise ConfigError(
                f"the scorer gave an array of shape {scores.shape} for {len(texts)} texts, or"
                " numbers that are not finite: each text needs one number"
            )
        return scores

    def _drawn_prompts(self, step: int) -> list[Prompt]:
        """Return each prompt of a step once for each of its samples."""
        generator = self._streams.numpy(f"prompts {step}")
        chosen = drawn_prompts(self._prompts, self._config.prompts, generator)
        return [prompt for prompt in chosen for _ in range(self._config.samples)]

    def _mixed(
        self,
        scores: NDArray[np.float64],
        passed: NDArray[np.bool_],
        reference: Judged,
        mask: Tensor,
    ) -> NDArray[np.float64]:
        """Return the scores of texts that passed, with their likelihood before training."""
        weight = self._config.likelihood_weight
        if not weight or not len(scores):
            return scores
        means = (reference.log_probabilities * mask).sum(1) / mask.sum(1).clamp(min=1)
        likelihoods = means.cpu().double()[torch.from_numpy(passed)]
        return mixed_scores(torch.from_numpy(scores), likelihoods, weight=weight).numpy()

    def _judged(
        self, completions: Completions, scores: NDArray[np.float64], passed: NDArray[np.bool_]
    ) -> _Rollout:
        config, mask = self._config, completions.mask.float()
        old = self._in_parts(self._policy, completions)
        reference = self._in_parts(self._reference, completions)
        rewards = self._gate.rewards(self._mixed(scores, passed, reference, mask), passed)
        given = torch.tensor(rewards, dtype=torch.float32, device=mask.device)
        if config.normalise:
            given = whitened(given, torch.ones_like(given))
        given = token_rewards(
            given,
            old.log_probabilities,
            reference.log_probabilities,
            mask,
            kl_weight=self._kl_weight,
        )
        advantages = generalised_advantages(
            given, old.values, mask, discount=config.discount, trace_decay=config.trace_decay
        )
        kl = divergence(old.log_probabilities, reference.log_probabilities, mask)
        return _Rollout(
            completions=completions,
            old=old,
            advantages=whitened(advantages, mask),
            returns=advantages + old.values,
            rewards=rewards,
            passed=passed,
            kl=float(kl),
        )

    def _update(self, rollout: _Rollout, step: int) -> tuple[float, float]:
        """Take the gradient steps of a step, and return the mean policy and value losses."""
        config, kept = self._config, []
        order = self._streams.numpy(f"minibatches {step}")
        for _ in range(config.epochs):
            shuffled = torch.from_numpy(order.permutation(len(rollout.rewards)))
            for rows in parts_of(shuffled, config.minibatch):
                policy, value, entropy = self._losses(rollout, rows.to(rollout.returns.device))
                loss = policy + config.value_weight * value - config.entropy_weight * entropy
                self._optimiser.zero_grad(set_to_none=True)
                loss.backward()  # type: ignore[no-untyped-call]
                torch.nn.utils.clip_grad_norm_(self._policy.parameters(), config.gradient_norm)
                self._optimiser.step()
                kept.append((float(policy.detach()), float(value.detach())))
        means = np.mean(kept, axis=0)
        return float(means[0]), float(means[1])

    def _losses(self, rollout: _Rollout, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        completions = rows_of(rollout.completions, rows)
        mask = completions.mask.float()
        now = self._policy(completions, entropies=self._config.entropy_weight > 0)
        policy = clipped_policy_loss(
            now.log_probabilities,
            rollout.old.log_probabilities[rows],
            rollout.advantages[rows],
            mask,
            clip_range=self._config.clip_range,
        )
        value = clipped_value_loss(
            now.values,
            rollout.old.values[rows],
            rollout.returns[rows],
            mask,
            clip_range=self._config.value_clip_range,
        )
        return policy, value, masked_mean(now.entropies, mask)

    def _in_parts(self, policy: PolicyWithValue, completions: Completions) -> Judged:
        """Return what a policy says of all completions, a minibatch at a time."""
        rows = torch.arange(len(completions.tokens), device=completions.tokens.device)
        with torch.no_grad():
            parts = [
                policy(rows_of(completions, one)) for one in parts_of(rows, self._config.minibatch)
            ]
        return Judged(*(torch.cat(columns) for columns in zip(*parts, strict=True)))

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(self._streams.integer(name))

    def _loss(self) -> float:
        if self._public_rows is None:
            return math.nan
        return public_loss(self._reference.language, self._public_rows)

    def _limit(self, metrics: StepMetrics) -> str:
        """Return the limit that was broken often enough to stop, in words; empty where none was."""
        found = self._config.stopping.broken(metrics)
        self._strikes = self._strikes + 1 if found else 0
        return found if self._strikes >= self._config.stopping.patience else ""

    def _check(self, folder: Path, step: int) -> str:
        """Keep a checkpoint, and the model where it is in health; return a broken limit, if any."""
        if self._public_rows is not None:
            rise = public_loss(self._language, self._public_rows) - self._first_loss
            limit = self._config.stopping.most_loss_rise
            if limit is not None and not rise <= limit:
                return f"the loss on public text rose by {rise:.3g}, its limit {limit:.3g}"
        if not self._strikes and self._config.stopping != StoppingRule():
            keep(self._language, folder / _HEALTHY)
        numbers = {"kl_weight": self._kl_weight, "strikes": self._strikes}
        state = TrainingState(step=step, numbers=numbers, of=self._of)
        save_state(folder / _STATE, self._policy, self._optimiser, state)
        return ""

    def _back(self, folder: Path, step: int, limit: str) -> Outcome:
        """Go back to the model that was last in health, or to the one before training."""
        healthy = folder / _HEALTHY
        kept = Language.load(healthy) if healthy.exists() else self._reference.language
        with torch.no_grad():
            for mine, its in zip(
                self._language.model.parameters(), kept.model.parameters(), strict=True
            ):
                mine.copy_(its)
        return Outcome(steps=step, stopped=limit)
