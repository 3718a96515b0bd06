"""The private round: the same result however it is spread, and a ledger that is always true."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.rounds import server as server_module
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.summing import SummedWorkers
from distributed_privrl.rounds.worker import LocalUpdateWorker
from tests.worlds.toy import ToyUpdate, initial_parameters
from tests.worlds.toy_run import RUN_ID, ToyRun


@pytest.fixture
def toy(tmp_path: Path) -> ToyRun:
    return ToyRun(folder=tmp_path)


@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("update", [ToyUpdate(), ToyUpdate(dtype=torch.float32)], ids=["64", "32"])
def test_parameters_are_the_same_bits_for_any_number_of_workers(
    toy: ToyRun, workers: int, update: ToyUpdate
) -> None:
    alone = replace(toy, update=update).with_folder("alone").train()
    together = replace(toy, update=update, workers=workers).with_folder("together").train()
    np.testing.assert_array_equal(together, alone)
    assert np.abs(alone - initial_parameters(update.dtype)).max() > 0.01


@pytest.mark.parametrize("workers", [3, 5, 6])
def test_sums_of_sums_are_the_same_bits(toy: ToyRun, workers: int) -> None:
    alone = toy.with_folder("alone").train()
    tree = replace(toy, workers=workers, fan_in=2).with_folder("tree")
    with tree.server() as group:
        parts = group._workers[0]._spec.workers  # what the server asks
        assert isinstance(parts, SummedWorkers)
        assert 2 <= parts.size < workers
    np.testing.assert_array_equal(tree.train(), alone)


def test_a_round_too_large_for_exact_sums_is_refused_before_it_is_reserved(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """80 of 400 units are expected, and up to 143 within seven standard deviations."""
    for most, fits in ((150, True), (140, False)):
        monkeypatch.setattr(server_module, "most_exact_units", lambda *_, most=most: most)
        own = toy.with_folder(str(most))
        if fits:
            own.train()
            continue
        with (
            pytest.raises(UnsafeError, match="80 units on average, and exact sums of"),
            own.server(),
        ):
            pass
        assert own.ledger.reserved(RUN_ID).reserved_rounds == 0


def test_a_worker_tells_which_part_of_the_blocks_is_its_own(toy: ToyRun) -> None:
    specs = replace(toy, workers=4).worker_specs()  # of 6 blocks
    assert [spec.share * 6 for spec in specs] == [1, 2, 1, 2]
    toy.open()
    for spec in specs:
        worker = LocalUpdateWorker(spec)
        assert worker._batch(np.empty(0, np.int64), "nonce").share == spec.share
        worker.close()


def test_several_rows_and_copies_do_not_depend_on_workers(toy: ToyRun) -> None:
    several = replace(toy, rows_per_unit=3, copies=2, rounds=10)
    alone = several.with_folder("alone").train()
    together = replace(several, workers=3).with_folder("together").train()
    np.testing.assert_array_equal(together, alone)


def test_training_moves_the_parameters_and_their_average(toy: ToyRun) -> None:
    final = replace(toy, noise_multiplier=None).train()
    average = toy.parameters("ema")
    initial = initial_parameters()
    assert np.abs(final - initial).max() > 0.05
    assert np.abs(average - initial).max() > 0.02
    assert np.abs(average - final).max() > 0.001


def test_the_noise_has_the_stated_scale(toy: ToyRun) -> None:
    # Without units the round is pure noise: its gradient times the denominator is z C N(0, 1).
    captured: list[np.ndarray] = []
    silent_run = replace(toy, sampling_probability=1e-12, insecure_key=None, rounds=4, block=4)
    with silent_run.server() as group:
        server = group._workers[0]
        step = server._optimiser.step
        server._optimiser.step = lambda gradient: (
            captured.append(gradient.numpy().copy()),
            step(gradient),
        )
        group.call("advance", {"rounds": 4})
    noise = np.concatenate(captured) * 1e-12 * 400
    statistic = float((noise**2).sum())
    n = len(noise)
    # Chi-square with 628 degrees of freedom, alpha about 1e-6 on each side.
    assert abs(statistic - n) < 4.9 * np.sqrt(2 * n)
    assert abs(0.64 * n - n) > 4.9 * np.sqrt(2 * n)  # a standard deviation 20 % too small is seen


def test_one_gaussian_vector_for_each_round_that_the_ledger_knows(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[int] = []
    original = SeededNoise.add_gaussian

    def spy(self: SeededNoise, values: np.ndarray, **keywords: object) -> np.ndarray:
        draws.append(len(values))
        return original(self, values, **keywords)  # type: ignore[arg-type]

    monkeypatch.setattr(SeededNoise, "add_gaussian", spy)
    replace(toy, workers=3).train()
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert len(draws) == 20 == entry.reserved_rounds == entry.drawn_rounds == entry.committed_rounds
    assert set(draws) == {ToyUpdate()().dimension}


def test_a_poisoned_unit_changes_nothing_that_can_be_seen(toy: ToyRun) -> None:
    clean = toy.with_folder("clean").train()
    poisoned = replace(toy, poison=np.nan).with_folder("poisoned").train()
    assert np.isfinite(poisoned).all()
    assert np.abs(clean - poisoned).max() < 0.2


def test_a_killed_run_resumes_and_the_lost_block_stays_charged(toy: ToyRun) -> None:
    with toy.server() as server:
        server.call("advance", {"rounds": 8})  # block 1 committed, 3 rounds of block 2 drawn
    with toy.server() as server:  # the process is gone, its checkpoint is from round 5
        status = server.call("progress")[0]
        assert (status.round_index, status.reserved, status.target) == (5, 10, 20)
        while not server.call("advance", {"rounds": 50})[0].finished:
            pass
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert (entry.committed_rounds, entry.drawn_rounds, entry.reserved_rounds) == (20, 25, 25)


def test_a_run_that_loses_more_than_its_spare_rounds_ends_earlier(toy: ToyRun) -> None:
    for _ in range(3):
        with toy.server() as server:
            server.call("advance", {"rounds": 3})
    with toy.server() as server:
        status = server.call("progress")[0]
        assert status.target == 15
        while not server.call("advance", {"rounds": 50})[0].finished:
            pass
        assert server.call("progress")[0].round_index == 15
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.reserved_rounds == 30


def test_a_resumed_run_equals_an_uninterrupted_one(toy: ToyRun) -> None:
    whole = toy.with_folder("whole").train()
    parts = toy.with_folder("parts")
    for _ in range(4):
        with parts.server() as server:
            server.call("advance", {"rounds": 5})
    assert np.array_equal(whole, parts.parameters())


def test_a_suspended_run_loses_no_round_that_was_drawn(toy: ToyRun) -> None:
    with toy.server() as server:
        server.call("advance", {"rounds": 8})
        server.call("suspend")
    with toy.server() as server:
        status = server.call("progress")[0]
        assert status.round_index == 8
        assert status.reserved == 10
        server.call("advance", {"rounds": 50})
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == 20 <= entry.drawn_rounds <= entry.reserved_rounds == 22


def test_a_crash_between_checkpoint_and_commit_loses_nothing(
    toy: ToyRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed_privrl.privacy.ledger import Ledger

    with monkeypatch.context() as patched:

        def crash(self: Ledger, nonce: str, *, drawn: int, run_id: str) -> None:
            raise OSError("power cut")

        patched.setattr(Ledger, "commit_rounds", crash)
        with toy.server() as server, pytest.raises(OSError, match="power cut"):
            server.call("advance", {"rounds": 5})
    with toy.server() as server:
        assert server.call("progress")[0].round_index == 5
        server.call("advance", {"rounds": 50})
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.committed_rounds == entry.reserved_rounds == 20


def test_rounds_beyond_the_hold_are_refused(toy: ToyRun) -> None:
    with toy.server() as group:
        server: ParameterServer = group._workers[0]
        server._target = 1000
        with pytest.raises(BudgetError):
            group.call("advance", {"rounds": 1000})
    entry = toy.ledger.reserved(RUN_ID)
    assert entry is not None
    assert entry.reserved_rounds <= 30


def test_a_checkpoint_holds_parameters_and_ids_alone(toy: ToyRun) -> None:
    toy.train()
    with safe_open(toy.folder / "rounds.safetensors", framework="pt") as file:
        assert set(file.keys()) == {"parameters", "ema", "exp_avg", "exp_avg_sq"}
        assert set(file.metadata()) == {"state"}
        assert set(json.loads(file.metadata()["state"])) == {
            "run_id",
            "round_index",
            "stage",
            "block_nonce",
            "block_drawn",
            "noise_source",
            "coding",
        }


def test_without_privacy_no_noise_and_no_ledger(toy: ToyRun) -> None:
    first = replace(toy, noise_multiplier=None).with_folder("a").train()
    second = replace(toy, noise_multiplier=None).with_folder("b").train()
    assert np.array_equal(first, second)
    assert not (toy.folder / "a" / "ledger.sqlite").exists()


def test_a_real_run_differs_every_time(toy: ToyRun) -> None:
    first = replace(toy, insecure_key=None, rounds=3).with_folder("a").train()
    second = replace(toy, insecure_key=None, rounds=3).with_folder("b").train()
    assert not np.array_equal(first, second)


def test_float32_parameters_work(toy: ToyRun) -> None:
    update = ToyUpdate(dtype=torch.float32)
    assert replace(toy, update=update).train(LocalExecutor()).dtype == np.float32


def test_noise_and_ledger_go_together(toy: ToyRun) -> None:
    toy.open()
    spec = toy.server_spec(LocalExecutor().start(LocalUpdateWorker, toy.worker_specs()))
    for broken in (replace(spec, ledger=None), replace(spec, mechanism=None)):
        with pytest.raises(UnsafeError, match="go together"):
            ParameterServer(broken)
