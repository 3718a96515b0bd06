"""Pre-training on public text: it learns, is kept, and goes on at the same bits."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.random import Streams
from distributed_privrl.text import pretraining
from distributed_privrl.text.language import Language
from distributed_privrl.text.pretraining import PretrainingConfig, packed, pretrained, public_loss
from tests.text.small import SIZES, language, texts

CONFIG = PretrainingConfig(model=SIZES, steps=12, batch=4, learning_rate=1e-2, checkpoint_every=4)


class StoppedError(Exception):
    """A run was interrupted."""


def test_it_learns_and_a_stopped_run_ends_at_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = pretrained(tmp_path / "whole", texts(), config=CONFIG, streams=Streams(0))

    def stop(stage: str, done: int, total: int, note: str = "") -> None:
        if done == 8:
            raise StoppedError

    with pytest.raises(StoppedError):
        pretrained(tmp_path / "cut", texts(), config=CONFIG, streams=Streams(0), progress=stop)
    resumed = pretrained(tmp_path / "cut", texts(), config=CONFIG, streams=Streams(0))
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)
    rows = packed(whole, texts(), length=SIZES.context)[:8]
    assert public_loss(whole, rows) < public_loss(language(), rows) - 0.3
    assert not list(tmp_path.rglob("state.safetensors"))

    def never(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(pretraining, "_train", never)
    pretrained(tmp_path / "cut", texts(), config=CONFIG, streams=Streams(0))
    with pytest.raises(AssertionError, match="again"):
        pretrained(tmp_path / "cut", texts()[1:], config=CONFIG, streams=Streams(0))


def test_the_loss_is_the_entropy_of_a_model_that_knows_nothing() -> None:
    known = language()
    with torch.no_grad():
        known.model.transformer.wte.weight.zero_()
    rows = packed(known, texts(), length=SIZES.context)[:3]
    assert public_loss(known, rows, batch=2) == pytest.approx(
        math.log(len(known.tokenizer)), abs=1e-5
    )


def test_rows_are_the_texts_with_ends_between_them() -> None:
    known = language()
    rows = packed(known, ["a plain text", "and one more"], length=4)
    joined = [*known.encode(["a plain text"])[0], known.end]
    flat = rows.flatten().tolist()
    assert flat[: len(joined)] == joined
    assert rows.shape[1] == 4
    with pytest.raises(ConfigError, match="one row needs 40"):
        packed(known, ["few"], length=40)


def test_any_string_is_coded_and_comes_back() -> None:
    known = language()
    strings = ["naïve café 北京 \x00 tail", "", "two\nlines"]
    assert known.decode(known.encode(strings)) == strings


def test_the_rate_rises_and_falls_to_zero() -> None:
    config = replace(CONFIG, steps=40, learning_rate=1.0)
    rates = [config.rate(step) for step in range(40)]
    assert rates[0] == 0.5
    assert np.argmax(rates) in (1, 2)
    assert rates[-1] < 0.01


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="holds no causal language model"):
        Language.load(tmp_path)
