"""Texts on a GPU: what goes there, what comes back, and the refusal without one."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.methods.dprft.tokens import (
    NetworkOf,
    NextTokenLoss,
    NextTokens,
    TokenCoding,
)
from distributed_privrl.rounds.worker import LocalUpdateWorker
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.updates.gradient import GradientUpdate
from distributed_privrl.updates.local_update import UnitBatch
from distributed_privrl.updates.parameters import FlatParameters
from tests.text.small import language
from tests.worlds.devices import GPU, check_refused_without_gpu, recorded
from tests.worlds.notes import LearnedNotes, Notes

WORLDS = [Notes, LearnedNotes]
SMALL = {Notes: {"training__steps": 1}, LearnedNotes: {"training__rounds": 1}}


@pytest.fixture
def moved(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where models of language are to compute; they stay on the CPU."""
    asked: list[str] = []
    monkeypatch.setattr(Language, "to", lambda self, device: asked.append(device) or self)
    return asked


def test_clipped_sums_of_a_device_are_those_of_the_cpu(device: str) -> None:
    known = language()
    coding = TokenCoding.of(known, [Prompt(text="a note: ", words=4)], piece=8)
    rows = [coding.rows(known.encode([text])[0], 3)[0] for text in ("a bed", "drugs of x", "y")]
    batch = UnitBatch(
        rows=np.stack(rows)[:, None], valid=np.ones((3, 1), bool), draws=np.zeros((3, 1, 0))
    )
    start = FlatParameters(NextTokens(known.model)).numpy().copy()
    sums = [
        GradientUpdate(
            build=NetworkOf.of(known, name),
            row_loss=NextTokenLoss(),
            clip_norm=0.05,
            micro_batch_rows=2,
            per_unit_gradients="formed",
        )()
        .clipped_sum(start, batch)
        .copy()
        for name in ("cpu", device)
    ]
    assert 0 < np.linalg.norm(sums[0]) <= 3 * 0.05
    np.testing.assert_allclose(sums[1], sums[0], rtol=0, atol=1e-5)


def test_texts_of_a_device_are_those_of_the_cpu(device: str) -> None:
    drawn = []
    for name in ("cpu", device):
        known = language(seed=1)
        known.model.to(name)
        generator = torch.Generator().manual_seed(5)
        drawn.append(generate(known, ["a", "a note"], most_tokens=6, generator=generator).texts)
    assert drawn[0] == drawn[1]
    assert all(drawn[0])


@pytest.mark.parametrize("world_of", WORLDS)
def test_a_run_on_gpus_trains_and_writes_there(
    tmp_path: Path, moved: list[str], world_of: type[Notes]
) -> None:
    executor = recorded(world_of(tmp_path).budget(), **SMALL[world_of])
    workers = {LocalUpdateWorker: {"cuda"}}  # of `dprft` voters compute on CPUs
    assert executor.devices == (workers if world_of is LearnedNotes else {})
    assert set(moved) == {"cuda"}


@pytest.mark.parametrize("world_of", WORLDS)
def test_a_gpu_that_is_not_there_is_missed_before_anything_is_charged(
    tmp_path: Path, world_of: type[Notes]
) -> None:
    check_refused_without_gpu(world_of(tmp_path).budget())


@pytest.mark.gpu
@pytest.mark.parametrize("world_of", WORLDS)
def test_a_whole_run_on_a_gpu(tmp_path: Path, world_of: type[Notes]) -> None:
    world = world_of(tmp_path).budget()
    assert world.run(key=None, **GPU).certificate.status == "valid"
