"""Training on a toy reward: it rises near the target, resumes to the bit, stops clean."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, ConfigError, StorageError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.policy import frozen_copy
from distributed_privrl.text.ppo import PpoTrainer
from distributed_privrl.text.ppo_config import Outcome, PpoConfig
from distributed_privrl.text.ppo_losses import masked_mean
from distributed_privrl.text.pretraining import packed
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.stopping import StepMetrics, StoppingRule
from tests.text.small import language, texts

PROMPTS = [Prompt(text=word) for word in ("agent", "space", "reward", "step")]
CONFIG = PpoConfig(
    steps=6,
    prompts=4,
    samples=4,
    most_tokens=8,
    minibatch=8,
    learning_rate=3e-3,
    checkpoint_every=2,
    kl_weight=0.0,
    kl_target=None,
)


def changed(config: PpoConfig, **changes: Any) -> PpoConfig:
    return PpoConfig(**{**config.model_dump(), **changes})


class Letters:
    """Rewards the share of letters e, and counts what it is asked."""

    def __init__(self, *, budget: int = 10_000) -> None:
        self.left, self.asked = budget, list[list[str]]()

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        if len(texts) > self.left:
            raise BudgetError("the budget is spent: ledger budget")
        self.left -= len(texts)
        self.asked.append(list(texts))
        return np.array([text.count("e") / max(1, len(text)) for text in texts])


class Noise(Letters):
    """Rewards nothing in particular."""

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        super().score(texts)
        return np.random.default_rng(len(self.asked)).normal(size=len(texts))


def train(
    folder: Path,
    *,
    config: PpoConfig = CONFIG,
    scorer: Letters | None = None,
    gate: Gate | None = None,
    seen: list[StepMetrics] | None = None,
    rows: NDArray[np.int64] | None = None,
    stop_at: int = -1,
) -> tuple[Outcome, Language]:
    known = language()

    def report(metrics: StepMetrics) -> None:
        if seen is not None:
            seen.append(metrics)
        if metrics.step == stop_at:
            raise KeyboardInterrupt

    trainer = PpoTrainer(
        known,
        scorer or Letters(),
        gate=gate or Gate(most_repetition=1.0, least_words=0),
        prompts=PROMPTS,
        config=config,
        streams=Streams(0),
        public_rows=rows,
    )
    return trainer.train(folder, report=report), known


def same(one: Language, other: Language) -> bool:
    pairs = zip(one.model.parameters(), other.model.parameters(), strict=True)
    return all(torch.equal(first, second) for first, second in pairs)


def likelihood(known: Language) -> float:
    """Return the mean log-probability that the model before gives what a model writes."""
    asked = [one.text for one in PROMPTS for _ in range(16)]
    generator = torch.Generator().manual_seed(0)
    completions = generate(known, asked, most_tokens=8, generator=generator)
    said = frozen_copy(language())(completions).log_probabilities
    return float(masked_mean(said, completions.mask).detach())


def test_the_reward_rises_and_the_divergence_comes_to_its_target(tmp_path: Path) -> None:
    seen: list[StepMetrics] = []
    config = changed(
        CONFIG, steps=50, prompts=8, minibatch=32, kl_weight=0.2, kl_target=0.3, kl_gain=0.25
    )
    outcome, known = train(tmp_path, config=config, seen=seen)
    assert outcome == Outcome(steps=50)
    rewards = [one.reward for one in seen]
    late = [one.kl for one in seen[-20:]]
    assert np.mean(rewards[-20:]) > 2 * np.mean(rewards[:5])
    assert 0.15 < np.mean(late) < 0.6
    assert same(Language.load(tmp_path / "model"), known)
    assert seen[0].kl == pytest.approx(0, abs=1e-6)


def test_a_stopped_training_goes_on_to_the_same_bits_and_asks_nothing_new(tmp_path: Path) -> None:
    whole, cut = Letters(), Letters()
    _, expected = train(tmp_path / "whole", scorer=whole)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "cut", scorer=cut, stop_at=5)
    _, found = train(tmp_path / "cut", scorer=cut)
    assert same(found, expected)
    assert cut.asked[:5] == whole.asked[:5]
    assert cut.asked[5:] == whole.asked[4:], "step 5 was scored, but not kept: the same texts again"
    with pytest.raises(StorageError, match="another training"):
        train(tmp_path / "cut", config=changed(CONFIG, learning_rate=1e-9))


def test_the_budget_ends_the_training_and_its_model_is_kept(tmp_path: Path) -> None:
    scorer = Letters(budget=3 * 16)
    outcome, _ = train(tmp_path / "short", scorer=scorer)
    assert (outcome.steps, outcome.stopped) == (3, "the budget is spent")
    assert "ledger budget" in str(outcome.refusal)
    assert len(scorer.asked) == 3
    _, expected = train(tmp_path / "three", config=changed(CONFIG, steps=3))
    assert same(Language.load(tmp_path / "short" / "model"), expected)


def test_what_fails_the_gate_is_never_scored(tmp_path: Path) -> None:
    scorer, seen = Letters(), list[StepMetrics]()
    gate = Gate(judge=lambda _, text: 10.0 if len(text) % 2 else 1.0, most_repetition=1.0)
    train(tmp_path / "some", scorer=scorer, gate=gate, seen=seen)
    assert all(len(text) % 2 for texts in scorer.asked for text in texts)
    assert sum(map(len, scorer.asked)) == round(sum(one.gate_rate * 16 for one in seen))
    scorer = Letters()
    train(tmp_path / "none", scorer=scorer, gate=Gate(judge=lambda *_: 0.0))
    assert not scorer.asked


def test_a_likelihood_in_the_reward_makes_likelier_texts_and_no_failed_text_gains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, given = changed(CONFIG, steps=12, prompts=8), list[NDArray[np.float64]]()
    mixing = changed(config, likelihood_weight=2.0)
    made, rewards = language, Gate.rewards

    def seen(
        gate: Gate, scores: NDArray[np.float64], passed: NDArray[np.bool_]
    ) -> NDArray[np.float64]:
        given.append(rewards(gate, scores, passed)[~passed])
        return rewards(gate, scores, passed)

    def sure() -> Language:
        known = made()
        with torch.no_grad():
            known.model.get_output_embeddings().weight *= 8  # it prefers some tokens
        return known

    monkeypatch.setattr(Gate, "rewards", seen)
    monkeypatch.setattr(sys.modules[__name__], "language", sure)
    gate = Gate(judge=lambda _, text: 10.0 if len(text) % 2 else 1.0, most_repetition=1.0)
    found = [
        likelihood(train(tmp_path / name, config=one, scorer=Noise())[1])
        for name, one in {"plain": config, "mixed": mixing}.items()
    ]
    assert found[1] > found[0] + 1
    given.clear()
    train(tmp_path / "gate", config=changed(mixing, steps=3), gate=gate)
    assert all(len(set(failed)) <= 1 for failed in given)
    assert any(len(failed) > 1 for failed in given)


def test_a_broken_limit_brings_back_the_last_model_in_health(tmp_path: Path) -> None:
    rule = StoppingRule(most_kl=0.02, patience=1)
    config = changed(CONFIG, steps=40, checkpoint_every=1, stopping=rule)
    outcome, known = train(tmp_path / "kl", config=config)
    assert "kl is" in outcome.stopped
    assert 2 < outcome.steps < 40
    _, expected = train(tmp_path / "less", config=changed(CONFIG, steps=outcome.steps - 1))
    assert same(known, expected)

    rows = packed(known, texts(), length=48)[:4]
    rule = StoppingRule(most_loss_rise=-10)
    outcome, known = train(tmp_path / "loss", config=changed(CONFIG, stopping=rule), rows=rows)
    assert "public text" in outcome.stopped
    assert same(known, language()), "no check was passed: the model before training"


@pytest.mark.parametrize("answer", [np.zeros(3), np.full(16, np.nan)])
def test_each_text_needs_one_finite_score(tmp_path: Path, answer: NDArray[np.float64]) -> None:
    scorer = Letters()
    scorer.score = lambda texts: answer  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="one number"):
        train(tmp_path, scorer=scorer)


def test_prompts_are_needed() -> None:
    with pytest.raises(ConfigError, match="prompts"):
        PpoTrainer(
            language(), Letters(), gate=Gate(), prompts=[], config=CONFIG, streams=Streams(0)
        )
