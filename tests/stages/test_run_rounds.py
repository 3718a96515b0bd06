"""Driving a server that dies: it is asked where it stands, and nothing is asked of it twice."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from distributed_privrl.core.errors import WorkerLostError
from distributed_privrl.core.progress import silent
from distributed_privrl.rounds.round_server import RoundProgress
from distributed_privrl.stages.training import SERVER_RESTARTS, run_rounds

TARGET = 10
PLAN: Any = SimpleNamespace(block_rounds=20, budget=None)


class MortalServer:
    """A group of one server that dies in the calls with these numbers, two rounds into an advance.

    It comes back from its last checkpoint, which it writes every four rounds.
    """

    def __init__(self, *deaths: int, returns: bool = True) -> None:
        self.size, self.calls = 1, []
        self._deaths, self._returns = deaths, returns
        self._round = self._saved = 0

    def call(self, method: str, shared: Any = None, per_worker: Any = None) -> list[RoundProgress]:
        number = sum(name != "wait" for name in self.calls)
        self.calls.append(method)
        rounds = (shared or {}).get("rounds", 0)
        for done in range(rounds):
            if number in self._deaths and done == 2:
                break
            self._round += self._round < TARGET
            if self._round % 4 == 0 or self._round == TARGET:
                self._saved = self._round
        if number in self._deaths:
            self._round = self._saved
            raise WorkerLostError("worker 0 of 1 died", may_return=self._returns)
        return [RoundProgress(round_index=self._round, target=TARGET, reserved=0)]

    def wait_for_lost(self) -> None:
        self.calls.append("wait")


@pytest.mark.parametrize("deaths", [(), (0,), (1,), (2,), (0, 1, 2), (1, 2, 3), (1, 3, 5)])
def test_a_server_that_died_is_awaited_and_asked_where_it_stands(deaths: tuple[int, ...]) -> None:
    server, seen = MortalServer(*deaths), []
    status = run_rounds(server, PLAN, progress=lambda stage, done, *_: seen.append(done))
    assert status.round_index == seen[-1] == TARGET
    assert server.calls.count("wait") == len(deaths)
    for before, after in zip(server.calls, server.calls[1:], strict=False):
        if before == "wait":
            assert after == "progress"
    asked = [name for name in server.calls if name != "wait"]
    for number in deaths:
        assert asked[number + 1] == "progress"  # never an advance again unasked


def test_what_a_lost_block_had_done_is_done_anew_from_the_checkpoint() -> None:
    seen: list[int] = []
    run_rounds(MortalServer(2), PLAN, progress=lambda stage, done, *_: seen.append(done))
    assert seen == [0, 5, 4, 9, 10]


def test_a_server_that_dies_once_too_often_ends_the_run() -> None:
    server = MortalServer(*range(SERVER_RESTARTS + 1))
    with pytest.raises(WorkerLostError):
        run_rounds(server, PLAN, progress=silent)
    assert server.calls.count("progress") == SERVER_RESTARTS + 1


def test_who_does_not_come_back_ends_the_run_at_once() -> None:
    """A worker that the server has given up is no loss of the server."""
    server = MortalServer(1, returns=False)
    with pytest.raises(WorkerLostError):
        run_rounds(server, PLAN, progress=silent)
    assert server.calls == ["progress", "advance"]


def interrupted(server: MortalServer, at: int) -> None:
    def stop(stage: str, done: int, *_: Any) -> None:
        if done >= at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_rounds(server, PLAN, progress=stop)


def test_an_interruption_writes_a_checkpoint_first() -> None:
    server = MortalServer()
    interrupted(server, at=5)
    assert server.calls == ["progress", "advance", "suspend"]


def test_an_interruption_stays_one_where_the_server_has_died(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server = MortalServer(2)
    with caplog.at_level(logging.WARNING):
        interrupted(server, at=5)
    assert server.calls == ["progress", "advance", "suspend"]  # and nobody waits for it
    (record,) = caplog.records
    assert "the rounds of its open block stay charged, and --resume goes on" in record.message


def test_an_interruption_while_a_server_is_built_again_asks_nothing_of_it() -> None:
    class Impatient(MortalServer):
        def wait_for_lost(self) -> None:
            raise KeyboardInterrupt

    server = Impatient(1)
    with pytest.raises(KeyboardInterrupt):
        run_rounds(server, PLAN, progress=silent)
    assert server.calls == ["progress", "advance"]
