"""A lost call of a server is never repeated, and who repeats it is seen."""

from pathlib import Path

import pytest

from distributed_privrl.core.executor import Executor
from tests.gates.recovery import gate_nothing_is_asked_twice
from tests.planted import recovery_bugs
from tests.planted.round_bugs import Plant


def test_nothing_is_asked_twice(tmp_path: Path, ray_executor: Executor) -> None:
    gate_nothing_is_asked_twice(tmp_path, ray_executor)


@pytest.mark.parametrize(
    "plant", [recovery_bugs.ray_repeats_calls, recovery_bugs.every_lost_call_is_repeated]
)
def test_the_gate_sees_a_question_asked_twice(
    plant: Plant, tmp_path: Path, ray_executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match="was asked to advance unasked"):
            gate_nothing_is_asked_twice(tmp_path, ray_executor)
