"""Private evolution: votes choose, variations stay near, a spent budget ends it with its texts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import BudgetError, ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.aug_pe import (
    FilledBlanks,
    RewrittenBlanks,
    evolve,
    survivors,
)
from distributed_privrl.text.aug_pe_config import AugPeConfig
from distributed_privrl.text.generation import FREE, Completions, generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt
from tests.text.small import language

PROMPTS = [Prompt(text=word) for word in ("agent", "space", "reward")]
CONFIG = AugPeConfig(iterations=10, population=48, most_tokens=8, batch=32)


def changed(config: AugPeConfig, **changes: Any) -> AugPeConfig:
    return AugPeConfig(**{**config.model_dump(), **changes})


class Letters:
    """Votes for letters e."""

    def __init__(self, budget: int = 10_000) -> None:
        self.left, self.asked = budget, 0

    def nearest_votes(self, texts: Sequence[str]) -> NDArray[np.float64]:
        if self.left < 1:
            raise BudgetError("the budget is spent")
        self.left, self.asked = self.left - 1, self.asked + 1
        return np.array([float(text.count("e")) for text in texts])


def letters(texts: Sequence[str]) -> float:
    return float(np.mean([text.count("e") for text in texts]))


def test_rows_survive_in_proportion_to_their_votes() -> None:
    votes = np.array([3.0, -9, 1, 0, 4])
    rows = survivors(votes, 80, 0.0, np.random.default_rng(0))
    assert np.bincount(rows, minlength=5).tolist() == [30, 0, 10, 0, 40]
    rows = survivors(votes, 80, 3.5, np.random.default_rng(0))
    assert set(rows) == {4}
    rows = survivors(-votes.clip(0), 10, 0.0, np.random.default_rng(0))
    assert np.bincount(rows).tolist() == [2] * 5


def test_votes_move_the_population_and_the_same_streams_the_same_way() -> None:
    known, votes = language(), Letters()
    vary = RewrittenBlanks(language=known, most_tokens=8, blank_probability=0.2, batch=32)

    def run(iterations: int, seed: int = 0) -> tuple[str, ...]:
        config = changed(CONFIG, iterations=iterations)
        found = evolve(
            known, votes, prompts=PROMPTS, vary=vary, config=config, streams=Streams(seed)
        )
        assert len(found.texts) == len(found.prompts) == 48
        return found.texts

    first, last = run(0), run(10)
    assert votes.asked == 10
    assert letters(last) > letters(first) + 0.5
    assert last == run(10) != run(10, seed=1)


def test_a_spent_budget_ends_it_with_the_texts_so_far() -> None:
    known = language()
    vary = RewrittenBlanks(language=known, most_tokens=8, blank_probability=0.6, batch=32)
    found = evolve(known, Letters(2), prompts=PROMPTS, vary=vary, config=CONFIG, streams=Streams(0))
    assert found.iterations == 2
    assert len(found.texts) == 48
    assert "spent" in str(found.refusal)
    with pytest.raises(ConfigError, match="prompts"):
        evolve(known, Letters(), prompts=[], vary=vary, config=CONFIG, streams=Streams(0))


def test_blanks_are_drawn_and_the_rest_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    known, seen = language(), list[list[int]]()
    text = "the agent and the environment"
    tokens = known.encode([text])[0]

    def watched(*args: Any, **keywords: Any) -> Completions:
        seen.extend(keywords["given"])
        return generate(*args, **keywords)

    monkeypatch.setattr("distributed_privrl.text.aug_pe.generate", watched)
    vary = RewrittenBlanks(language=known, most_tokens=20, blank_probability=0.6, batch=64)
    varied = vary(PROMPTS[:1] * 60, [text] * 60, Streams(0))
    blanks = [one == FREE for row in seen for one in row]
    assert np.mean(blanks) == pytest.approx(0.6, abs=0.07)
    assert all(one in (FREE, token) for row in seen for one, token in zip(row, tokens, strict=True))
    assert len(set(varied)) > 50
    vary = RewrittenBlanks(language=known, most_tokens=20, blank_probability=1e-9, batch=64)
    assert vary(PROMPTS[:1], [text], Streams(0)) == [text]
    with pytest.raises(ConfigError, match="blank_probability"):
        RewrittenBlanks(language=known, most_tokens=20, blank_probability=1.5, batch=64)


def test_an_instruct_model_is_asked_to_fill_the_blanks(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[str]()

    def answering(known: Language, prompts: list[str], **_: object) -> object:
        asked.extend(prompts)
        return type("Drawn", (), {"texts": ["filled"] * len(prompts)})

    monkeypatch.setattr("distributed_privrl.text.aug_pe.generate", answering)
    vary = FilledBlanks(language=language(), most_tokens=20, blank_probability=0.6, batch=2)
    words = "one two three four five"
    assert vary(PROMPTS, [words] * 3, Streams(0)) == ["filled"] * 3
    assert all("exactly 5 words" in one for one in asked)
    blanked = np.mean([one.count(" _") for one in asked]) / 5
    assert 0 < blanked < 1
    assert len(set(asked)) > 1
