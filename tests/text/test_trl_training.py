"""GRPO and RLOO by trl: the gate stands before the scorer, the budget ends it, nobody else asks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, ConfigError, StorageError, UnsafeError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.language import Language
from distributed_privrl.text.ppo_config import Outcome
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.trl_config import TrlConfig
from distributed_privrl.text.trl_training import GatedReward, train_with_trl
from tests.text.small import language

PROMPTS = [Prompt(text=word) for word in ("agent", "space", "reward", "step")]
CONFIG = TrlConfig(steps=2, prompts=4, samples=2, most_tokens=6, minibatch=4, learning_rate=1e-3)


def changed(config: TrlConfig, **changes: Any) -> TrlConfig:
    return TrlConfig(**{**config.model_dump(), **changes})


class Letters:
    def __init__(self, *, budget: int = 10_000) -> None:
        self.left, self.asked = budget, list[list[str]]()

    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        if len(texts) > self.left:
            raise BudgetError("the budget is spent: ledger budget")
        self.left -= len(texts)
        self.asked.append(list(texts))
        return np.array([text.count("e") / max(1, len(text)) for text in texts])


GATE = Gate(judge=lambda _, text: 10.0 if len(text) % 2 else 1.0, most_repetition=1.0)


@pytest.fixture
def _trl() -> None:
    pytest.importorskip("trl", reason="extra text is not installed: pip install '.[text]'")


@pytest.mark.usefixtures("_trl")
@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_a_step_scores_once_what_passed_and_the_model_moves(tmp_path: Path, algorithm: str) -> None:
    known, scorer = language(), Letters()
    config = changed(CONFIG, algorithm=algorithm)
    outcome = train_with_trl(
        known,
        scorer,
        gate=GATE,
        prompts=PROMPTS,
        config=config,
        streams=Streams(0),
        folder=tmp_path,
    )
    assert outcome == Outcome(steps=2)
    assert len(scorer.asked) == 2
    assert all(len(text) % 2 for texts in scorer.asked for text in texts)
    kept = Language.load(tmp_path / "model")
    moved = [
        not torch.equal(one, other)
        for one, other in zip(kept.model.parameters(), language().model.parameters(), strict=True)
    ]
    assert any(moved)


@pytest.mark.usefixtures("_trl")
def test_a_spent_budget_ends_it_with_the_model_kept(tmp_path: Path) -> None:
    outcome = train_with_trl(
        language(),
        Letters(budget=8),
        gate=Gate(least_words=0, most_repetition=1.0),
        prompts=PROMPTS,
        config=changed(CONFIG, steps=5),
        streams=Streams(0),
        folder=tmp_path,
    )
    assert outcome.steps == 1
    assert "spent" in str(outcome.refusal)
    assert (tmp_path / "model" / "config.json").exists()


class Killed(BaseException):
    """Ends a training as a kill does."""


@pytest.mark.usefixtures("_trl")
def test_a_killed_training_goes_on_to_the_same_bits_and_asks_nothing_new(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(least_words=0, most_repetition=1.0)
    config = changed(CONFIG, steps=4, epochs=2, checkpoint_every=2)

    def train(name: str, scorer: Letters, config: TrlConfig = config) -> list[torch.Tensor]:
        train_with_trl(
            language(),
            scorer,
            gate=gate,
            prompts=PROMPTS,
            config=config,
            streams=Streams(0),
            folder=tmp_path / name,
        )
        return list(Language.load(tmp_path / name / "model").model.parameters())

    whole, cut, right = Letters(), Letters(), Letters.score
    expected = train("whole", whole)

    def dies(self: Letters, texts: Sequence[str]) -> NDArray[np.float64]:
        answer = right(self, texts)
        if len(self.asked) == 4:
            raise Killed
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Letters, "score", dies)
        with pytest.raises(Killed):
            train("cut", cut)
    half = tmp_path / "cut" / "trl" / "checkpoint-999"
    half.mkdir()  # as a kill inside a checkpoint leaves it
    with pytest.raises(StorageError, match="another training"):
        train("cut", cut, changed(config, learning_rate=1e-9))
    found = train("cut", cut)
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert cut.asked[:4] == whole.asked
    assert cut.asked[4:] == whole.asked[2:], "steps 3 and 4 were not kept: the same texts again"


@pytest.mark.usefixtures("_trl")
def test_an_evaluation_of_trl_reaches_no_scorer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import trl

    monkeypatch.setattr(
        trl.GRPOTrainer, "train", lambda self, **_: self.evaluate(self.train_dataset)
    )
    scorer = Letters()
    with pytest.raises(UnsafeError, match="evaluation"):
        train_with_trl(
            language(),
            scorer,
            gate=GATE,
            prompts=PROMPTS,
            config=CONFIG,
            streams=Streams(0),
            folder=tmp_path,
        )
    assert not scorer.asked


def test_an_evaluation_is_refused() -> None:
    scorer = Letters()
    reward = GatedReward(scorer, Gate(), PROMPTS)
    with pytest.raises(UnsafeError, match="evaluation"):
        reward(prompts=["agent"], completions=["a text"])
    assert not scorer.asked
    reward.training = lambda: True
    assert reward(prompts=["agent", "step"], completions=["eat ", ""]) == [1 / 3, 0]


def test_what_cannot_be_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="must divide"):
        changed(CONFIG, minibatch=3)
    assert changed(CONFIG, minibatch=None, prompts=12).at_once == 8
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match="several processes"):
        train_with_trl(
            language(),
            Letters(),
            gate=Gate(),
            prompts=PROMPTS,
            config=CONFIG,
            streams=Streams(0),
            folder=tmp_path,
        )
