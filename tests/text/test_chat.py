"""Models with a chat template get each prompt in it, whoever asks them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.tokens import TokenCoding
from distributed_privrl.text import generation
from distributed_privrl.text.aug_pe import FilledBlanks
from distributed_privrl.text.gate import Gate, InstructJudge
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.ppo import PpoTrainer
from distributed_privrl.text.ppo_config import PpoConfig
from distributed_privrl.text.prompts import InstructModel, Prompt
from distributed_privrl.text.trl_config import TrlConfig
from distributed_privrl.text.trl_training import train_with_trl
from tests.text.small import language
from tests.worlds.notes import Notes

TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<me>{% endif %}"
)
OPEN = Gate(most_repetition=1.0)
PROMPTS = [Prompt(text=word) for word in ("agent", "space")]


@pytest.fixture
def chatty(tmp_path: Path) -> Language:
    """A model of a folder whose tokenizer has a chat template."""
    known = language()
    known.save(tmp_path / "chatty")
    (tmp_path / "chatty" / "chat_template.jinja").write_text(TEMPLATE)
    return Language.load(tmp_path / "chatty")


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What models read, each prompt as it was rendered."""
    seen = list[str]()
    right = generation._drawn

    def watched(known: Language, batch: Any, *rest: Any) -> Any:
        rows = zip(batch.tokens, batch.mask.bool(), strict=True)
        seen.extend(known.decode(tokens[counts].tolist() for tokens, counts in rows))
        return right(known, batch, *rest)

    monkeypatch.setattr(generation, "_drawn", watched)
    return seen


class Ones:
    def score(self, texts: Sequence[str]) -> NDArray[np.float64]:
        return np.arange(len(texts), dtype=np.float64)


def test_prompts_stand_in_the_template_once(chatty: Language, read: list[str]) -> None:
    for known in (chatty, language()):
        generate(known, ["agent"], most_tokens=2, generator=torch.Generator())
    assert read == ["<user>agent<me>", "agent"]


def test_whoever_asks_a_model_asks_in_the_template(chatty: Language, read: list[str]) -> None:
    InstructModel(language=chatty, streams=Streams(0), most_tokens=2)("list")
    blanks = FilledBlanks(
        language=chatty, most_tokens=2, blank_probability=0.5, batch=2, request="{masked}{words}"
    )
    blanks(PROMPTS[:1], ["one"], Streams(0))
    InstructJudge(language=chatty)(PROMPTS[0], "a text")
    assert [one.count("<me>") for one in read] == [1, 1, 1]
    assert all(one.startswith("<user>") for one in read[:2])  # the third lost its beginning


def test_the_policy_is_tuned_behind_the_template(
    chatty: Language, read: list[str], tmp_path: Path
) -> None:
    config = PpoConfig(steps=1, prompts=2, samples=1, most_tokens=3)
    trainer = PpoTrainer(
        chatty, Ones(), gate=OPEN, prompts=PROMPTS, config=config, streams=Streams(0)
    )
    trainer.train(tmp_path)
    assert sorted(read) == ["<user>agent<me>", "<user>space<me>"]


@pytest.mark.parametrize("algorithm", ["grpo", "rloo"])
def test_trl_tunes_behind_the_template_and_the_gate_reads_the_plain_prompt(
    chatty: Language, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, algorithm: Any
) -> None:
    trl = pytest.importorskip("trl", reason="extra text is not installed")
    made = trl.GRPOTrainer if algorithm == "grpo" else trl.RLOOTrainer
    seen, gated, right = list[str](), set[str](), made._generate_single_turn

    def watched(self: Any, prompt_ids: Any, *rest: Any) -> Any:
        seen.extend(chatty.decode(prompt_ids))
        return right(self, prompt_ids, *rest)

    def judge(prompt: Prompt, text: str) -> float:
        assert isinstance(text, str)
        gated.add(prompt.text)
        return 10.0

    monkeypatch.setattr(made, "_generate_single_turn", watched)
    train_with_trl(
        chatty,
        Ones(),
        gate=Gate(most_repetition=1.0, judge=judge),
        prompts=PROMPTS,
        config=TrlConfig(algorithm=algorithm, steps=1, prompts=2, samples=2, most_tokens=3),
        streams=Streams(0),
        folder=tmp_path,
    )
    assert set(seen) == {"<user>agent<me>", "<user>space<me>"}
    assert gated == {"agent", "space"}


def test_documents_are_learned_behind_the_template(chatty: Language) -> None:
    coding = TokenCoding.of(chatty, PROMPTS, piece=4)
    assert chatty.decode(coding.prompts) == ["<user>agent<me>", "<user>space<me>"]
    plain = TokenCoding.of(language(), PROMPTS, piece=4)
    assert language().decode(plain.prompts) == ["agent", "space"]


def test_a_whole_run_tunes_and_writes_behind_the_template(tmp_path: Path, read: list[str]) -> None:
    world = Notes(tmp_path).budget()
    (world.language / "chat_template.jinja").write_text(TEMPLATE)
    world.run(training__steps=1, output__size=2)
    topics = ("beds", "drugs", "wards")
    assert set(read) <= {f"<user>A note on {topic}: <me>" for topic in topics}
    assert len(read) > 8  # texts of the step, and of the release
