"""What a server adds after the noise: it must cost no privacy, and follow from released numbers."""

import copy
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.rounds.server import PUBLIC_STATE, ParameterServer, PublicUpdate
from distributed_privrl.updates.gradient import GradientLocalUpdate
from tests.worlds.toy import ToyNetwork, ToyUpdate, initial_parameters
from tests.worlds.toy_run import RUN_ID, UNITS, ToyRun


@dataclass
class ToyPublicUpdate(PublicUpdate):
    """A vector that depends on the parameters, the round and how often it was asked."""

    calls: Tensor = field(default_factory=lambda: torch.zeros(1))
    given: list[tuple[NDArray[Any], int]] = field(default_factory=list)
    sums: list[NDArray[Any]] = field(default_factory=list)

    def vector_sum(self, parameters: NDArray[Any], round_index: int) -> NDArray[Any]:
        self.calls += 1
        self.given.append((parameters.copy(), round_index))
        self.sums.append(9 * np.sin(parameters + round_index + self.calls.item()))
        return self.sums[-1]

    def tensors(self) -> dict[str, Tensor]:
        return {"calls": self.calls}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.calls = tensors["calls"].clone()


@pytest.fixture
def toy(tmp_path: Path) -> ToyRun:
    return ToyRun(folder=tmp_path, public_update=ToyPublicUpdate, block=1, rounds=6)


def watched(run: ToyRun, rounds: int) -> tuple[list[NDArray[Any]], ToyPublicUpdate | None]:
    """Run some rounds; return the gradients that were stepped along, and the public update."""
    gradients: list[NDArray[Any]] = []
    with run.server() as group:
        server: ParameterServer = group._workers[0]
        step = server._optimiser.step

        def spy(gradient: Tensor) -> None:
            gradients.append(gradient.double().numpy().copy())
            step(gradient)

        server._optimiser.step = spy
        group.call("advance", {"rounds": rounds})
        return gradients, server._public


@pytest.mark.parametrize("noise_multiplier", [None, 1.0])
@pytest.mark.parametrize("workers", [1, 2])
def test_it_is_added_after_the_noise_and_shares_the_fixed_denominator(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch, noise_multiplier: float | None, workers: int
) -> None:
    drawn: list[tuple[NDArray[Any], float]] = []
    right: Callable[..., Any] = SeededNoise.add_gaussian

    def spy(source: SeededNoise, values: NDArray[Any], **keywords: Any) -> Any:
        drawn.append((values.copy(), keywords["standard_deviation"]))
        return right(source, values, **keywords)

    monkeypatch.setattr(SeededNoise, "add_gaussian", spy)
    run = replace(toy, noise_multiplier=noise_multiplier, workers=workers)
    (with_it,), update = watched(run.with_folder("with"), 1)
    (without,), nothing = watched(replace(run, public_update=None).with_folder("without"), 1)
    assert nothing is None
    assert update is not None
    denominator = run.sampling_probability * UNITS
    np.testing.assert_allclose(
        denominator * (with_it - without), update.sums[0], rtol=0, atol=1e-12
    )
    if noise_multiplier is not None:
        (values, deviation), (plain_values, plain_deviation) = drawn  # one draw a round, no more
        assert np.array_equal(values, plain_values)
        assert deviation == plain_deviation > noise_multiplier


def test_the_noise_beside_it_has_the_stated_scale(toy: ToyRun) -> None:
    nobody = replace(toy, sampling_probability=1e-12, insecure_key=None, rounds=4)
    gradients, update = watched(nobody, 4)
    assert update is not None
    noise = np.concatenate(gradients) * 1e-12 * UNITS - np.concatenate(update.sums)
    n = len(noise)
    # Chi-square with 628 degrees of freedom, alpha about 1e-6 on each side.
    assert abs(float((noise**2).sum()) - n) < 4.9 * np.sqrt(2 * n)


def test_a_private_row_reaches_it_through_released_parameters_alone(toy: ToyRun) -> None:
    """From the same released state, neighbouring datasets give the same public vector."""
    toy = replace(toy, sampling_probability=1.0)  # the unit that differs takes part in each round
    one = toy.with_folder("one")
    for done in range(4):
        other = replace(toy, folder=toy.folder / f"other-{done}", poison=4.0)
        if done:
            shutil.copytree(one.folder, other.folder)
            released = one.parameters()
        else:
            other.folder.mkdir()
            released = initial_parameters()
        (mine,), update = watched(one, 1)
        (theirs,), neighbour = watched(other, 1)
        assert update is not None
        assert neighbour is not None
        assert not np.array_equal(mine, theirs)
        assert np.array_equal(update.sums[0], neighbour.sums[0])
        ((parameters, round_index),) = update.given
        assert round_index == done
        assert np.array_equal(parameters, released)


def test_its_state_survives_a_resume(toy: ToyRun) -> None:
    whole = toy.with_folder("whole").train()
    parts = toy.with_folder("parts")
    for _ in range(3):
        with parts.server() as server:
            server.call("advance", {"rounds": 2})
    assert np.array_equal(whole, parts.parameters())
    assert parts.parameters(f"{PUBLIC_STATE}calls").tolist() == [6.0]


def test_the_ledger_counts_the_same_rounds(toy: ToyRun) -> None:
    toy.train()
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == entry.drawn_rounds == entry.reserved_rounds == 6


class WithTarget(ToyNetwork):
    """The toy network with a copy of its last layer that no round trains."""

    def __init__(self) -> None:
        super().__init__()
        self.target = copy.deepcopy(self.last).requires_grad_(False)


@dataclass(frozen=True)
class TargetLoss:
    """Regression on what the target says of the row."""

    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = module.target(torch.zeros(len(rows), 8, dtype=rows.dtype))
        return (module(rows) - wanted).square().sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class TargetUpdate(ToyUpdate):
    """Factory of a local update whose loss reads a target."""

    draw_count: int = 0

    def __call__(self) -> GradientLocalUpdate:
        return GradientLocalUpdate(module=WithTarget(), row_loss=TargetLoss(), clip_norm=1e9)


@dataclass
class MovingTarget(PublicUpdate):
    """A target that follows each round, and a step after it."""

    target: Tensor = field(default_factory=lambda: torch.ones(45, dtype=torch.float64))
    shift: float = 0.0
    seen: list[tuple[NDArray[Any], int]] = field(default_factory=list)

    def fixed(self) -> NDArray[Any]:
        return self.target.numpy()

    def after_round(self, parameters: Tensor, round_index: int) -> None:
        self.seen.append((parameters.numpy().copy(), round_index))
        parameters += self.shift
        self.target = self.target + 1

    def tensors(self) -> dict[str, Tensor]:
        return {"target": self.target}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        self.target = tensors["target"]


@dataclass(frozen=True)
class Moving:
    """Factory of a moving target."""

    shift: float = 0.0

    def __call__(self) -> MovingTarget:
        return MovingTarget(shift=self.shift)


@pytest.mark.parametrize("workers", [1, 2])
def test_workers_read_what_is_not_trained_behind_the_parameters(toy: ToyRun, workers: int) -> None:
    """Each round's losses are at that round's target, in every worker."""
    run = replace(
        toy,
        update=TargetUpdate(),
        public_update=Moving(),
        noise_multiplier=None,
        workers=workers,
        sampling_probability=1.0,
    )
    given: list[list[NDArray[Any]]] = []
    right = GradientLocalUpdate.clipped_sum

    def spy(self: GradientLocalUpdate, parameters: NDArray[Any], batch: Any) -> Any:
        given[-1].append(np.array(parameters))
        total = right(self, parameters, batch)
        module: Any = self.module
        assert np.array_equal(module.target.weight.numpy().ravel(), parameters[-45:-5])
        return total

    with pytest.MonkeyPatch.context() as patch, run.server() as group:
        patch.setattr(GradientLocalUpdate, "clipped_sum", spy)
        for _ in range(3):
            given.append([])
            group.call("advance", {"rounds": 1})
    dimension = len(initial_parameters())
    for done, vectors in enumerate(given):
        assert len(vectors) == workers
        for vector in vectors:
            assert len(vector) == dimension + 45
            assert np.all(vector[dimension:] == done + 1)
    assert run.parameters(f"{PUBLIC_STATE}target").tolist() == [4.0] * 45


def test_it_goes_on_from_the_noisy_step_and_lowers_no_charge(toy: ToyRun) -> None:
    """Steps between rounds draw nothing: as many Gaussian draws as rounds, at the same noise."""
    drawn: list[float] = []
    right: Callable[..., Any] = SeededNoise.add_gaussian

    def spy(source: SeededNoise, values: NDArray[Any], **keywords: Any) -> Any:
        drawn.append(keywords["standard_deviation"])
        return right(source, values, **keywords)

    moved = replace(toy.with_folder("moved"), update=TargetUpdate(), public_update=Moving(0.5))
    still = replace(toy.with_folder("still"), update=TargetUpdate(), public_update=Moving())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SeededNoise, "add_gaussian", spy)
        (_, update), (_, plain) = watched(moved, 1), watched(still, 1)
        (first, number), (same, _) = update.seen[0], plain.seen[0]  # type: ignore[union-attr]
        assert number == 0
        assert np.array_equal(first, same)
        assert np.array_equal(moved.parameters(), first + 0.5)
        assert np.array_equal(still.parameters(), first)
        moved.train()
    assert len(drawn) == 1 + moved.rounds
    assert len(set(drawn)) == 1
    entry = moved.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == entry.reserved_rounds == moved.rounds
