"""A gate on what a server that has died is asked: it fails if anything is asked of it twice."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import silent
from distributed_privrl.stages.training import run_rounds
from tests.runtime.probe import Diarist

PLAN: Any = SimpleNamespace(block_rounds=4, budget=None)


def gate_nothing_is_asked_twice(folder: Path, executor: Executor) -> None:
    """Have a server die while it advances, and read what the one built in its place was asked."""
    diary = folder / "diary.txt"
    server = executor.start(Diarist, [diary], service=True)
    try:
        assert run_rounds(server, PLAN, progress=silent).finished
    finally:
        server.close()
    lines = [line.split() for line in diary.read_text().splitlines()]
    first, *_ = lines
    again = [question for process, question in lines if process != first[0]]
    assert again, "the server never died"
    assert again[0] == "progress", f"a server that was built again was asked to {again[0]} unasked"
