"""What a run draws, told as it happens to a file that no fault reaches; replies that come twice."""

import hashlib
import json
import os
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup
from distributed_privrl.privacy.ledger import Ledger, releases
from distributed_privrl.rounds.round_server import RoundServer


def record_draws(file: Path) -> None:
    """Write each round that this process is about to draw, and each answer that it stores.

    Args:
        file: that lines are added to.
    """

    def note(*what: Any) -> None:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (json.dumps(what) + "\n").encode())
        os.close(descriptor)

    count, answer = RoundServer._count_round, releases.answer

    def counted(server: RoundServer, rounds: int = 1) -> None:
        count(server, rounds)
        for number in range(server._block_drawn - rounds, server._block_drawn):
            note("round", server._plan.run_id, server._nonce, number)

    def answered(connection: Any, nonce: str, drawn: str) -> Any:
        note("answer", nonce, hashlib.sha256(drawn.encode()).hexdigest())
        return answer(connection, nonce, drawn)

    RoundServer._count_round = counted  # type: ignore[method-assign]
    releases.answer = answered


def check_draws(file: Path, ledger: Ledger) -> None:
    """Check draws against the ledger: each was reserved before, and happened once.

    Args:
        file: of `record_draws`.
        ledger: that was charged.

    Raises:
        AssertionError: one was not, or happened twice; or committed <= drawn <= reserved is false.
    """
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    rounds = Counter(tuple(line[1:]) for line in lines if line[0] == "round")
    assert all(number == 1 for number in rounds.values()), "a reserved round was drawn twice"
    answers = defaultdict(set)
    for line in lines:
        if line[0] == "answer":
            answers[line[1]].add(line[2])
    assert all(len(one) == 1 for one in answers.values()), "a nonce was answered with two noises"
    happened = Counter(run for run, _, _ in rounds)
    entries = {entry.id: entry for entry in ledger.entries()}
    for entry in entries.values():
        assert (
            entry.committed_rounds
            <= entry.drawn_rounds
            <= entry.reserved_rounds
            <= entry.max_rounds
        )
        if entry.kind == "rounds":
            assert entry.committed_rounds <= happened[entry.id] <= entry.reserved_rounds
    assert set(happened) | set(answers) <= set(entries), "something was drawn and not charged"


def lost_rounds(ledger: Ledger, entries: str = "") -> int:
    """Return how many rounds, steps or answers were paid for and are in no result.

    Args:
        ledger: of one run that has ended.
        entries: how the ids of those that count end.
    """
    counted = [one for one in ledger.entries() if one.kind == "rounds"]
    return sum(
        one.reserved_rounds - one.committed_rounds for one in counted if one.id.endswith(entries)
    )


def double_replies(seed: int) -> None:
    """Let every call that may be repeated be made twice, late, and its second answer be taken.

    Args:
        seed: of how late.
    """
    generator = np.random.default_rng(seed)
    start, call = LocalExecutor.start, LocalWorkerGroup.call

    def started(executor: LocalExecutor, *args: Any, **options: Any) -> LocalWorkerGroup:
        group = start(executor, *args, **options)
        group.may_repeat = options.get("repeat_lost_calls", False)  # type: ignore[attr-defined]
        return group

    def called(group: LocalWorkerGroup, *args: Any, **options: Any) -> list[Any]:
        first = call(group, *args, **options)
        time.sleep(float(generator.uniform(0.0, 0.01)))
        if not getattr(group, "may_repeat", False):
            return first
        kept = [one.copy() if isinstance(one, np.ndarray) else one for one in first]
        second = call(group, *args, **options)
        for one, other in zip(kept, second, strict=True):
            if isinstance(one, np.ndarray):
                assert np.array_equal(one, other), "a repeated call was answered otherwise"
        return second

    LocalExecutor.start = started  # type: ignore[method-assign,assignment]
    LocalWorkerGroup.call = called  # type: ignore[method-assign,assignment]
