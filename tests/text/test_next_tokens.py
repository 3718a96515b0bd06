"""Accuracy of the next token: known for a text that repeats, and of no use for another one."""

from dataclasses import replace

import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.next_tokens import NextTokenConfig, next_token_accuracy
from tests.text.small import language

CONFIG = NextTokenConfig(epochs=25, batch=8, learning_rate=1e-2)
TEXTS = ["agent agent agent agent", "agent agent agent agent agent agent"] * 8


def test_what_was_learned_is_guessed_and_the_model_stays_as_it_was() -> None:
    known = language()
    before = [parameter.clone() for parameter in known.model.parameters()]
    accuracy = next_token_accuracy(
        known, TEXTS, ["agent agent agent agent agent"], config=CONFIG, streams=Streams(0)
    )
    assert accuracy > 0.6
    pairs = zip(before, known.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    useless = next_token_accuracy(
        known, ["zq xw vk zq xw vk"] * 8, TEXTS, config=CONFIG, streams=Streams(0)
    )
    assert useless < 0.1


def test_accuracy_counts_tokens_not_padding() -> None:
    known, config = language(), replace(CONFIG, epochs=0)
    token = known.encode(["e"])[0][0]
    with torch.no_grad():  # always guesses one token
        known.model.transformer.ln_f.weight.zero_()
        known.model.transformer.ln_f.bias.copy_(known.model.transformer.wte.weight[token] * 1e4)
    found = next_token_accuracy(known, TEXTS, ["eee", "zzzzeqq"], config=config, streams=Streams(0))
    lengths = [len(one) - 1 for one in known.encode(["eee", "zzzzeqq"])]
    hits = sum(one[1:].count(token) for one in known.encode(["eee", "zzzzeqq"]))
    assert found == pytest.approx(hits / sum(lengths))
    assert 0 < found < 1


def test_texts_that_are_too_short_are_named() -> None:
    with pytest.raises(ConfigError, match="held-out"):
        next_token_accuracy(
            language(), TEXTS, ["e", ""], config=replace(CONFIG, epochs=1), streams=Streams(0)
        )
    with pytest.raises(ConfigError, match="has 50 tokens"):
        next_token_accuracy(
            language(), TEXTS, TEXTS, config=replace(CONFIG, least_tokens=50), streams=Streams(0)
        )
