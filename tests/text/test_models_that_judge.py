"""Local models as judge and as author of prompts."""

import pytest
import torch

from distributed_privrl.core.random import Streams
from distributed_privrl.text.gate import InstructJudge
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import InstructModel, Prompt
from tests.text.small import language


def parrot(answer: str) -> Language:
    """A model that answers anything with the same first token, and then goes on with it."""
    known = language()
    token = known.encode([answer])[0][0]
    with torch.no_grad():
        known.model.transformer.ln_f.weight.zero_()
        known.model.transformer.ln_f.bias.copy_(known.model.transformer.wte.weight[token] * 1e4)
    return known


@pytest.mark.parametrize(("answer", "rating"), [("7", 0.0), ("x", 0.0)])
def test_an_answer_that_is_no_rating_counts_as_zero(answer: str, rating: float) -> None:
    judge = InstructJudge(language=parrot(answer))  # says 7777, which is no rating from 1 to 10
    assert judge(Prompt(text="Write."), "a text") == rating


def test_the_rating_is_read_and_the_model_is_asked_about_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def answering(known: object, prompts: list[str], **_: object) -> object:
        asked.extend(prompts)
        return type("Drawn", (), {"texts": [" 8 of 10"]})

    monkeypatch.setattr("distributed_privrl.text.gate.generate", answering)
    assert InstructJudge(language=language())(Prompt(text="Write."), "a {text}") == 8
    assert "Write." in asked[0]
    assert "a {text}" in asked[0]


def test_the_same_request_gets_the_same_answer() -> None:
    one = InstructModel(language=language(), streams=Streams(0), most_tokens=6)
    assert one("list topics") == one("list topics") != one("list keywords")
    generator = torch.Generator().manual_seed(Streams(0).integer("list topics"))
    drawn = generate(language(), ["list topics"], most_tokens=6, generator=generator)
    assert drawn.texts[0] == one("list topics")
