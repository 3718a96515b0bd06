"""Gauges for a cluster's operator: public facts alone, and none that times a private round."""

from types import SimpleNamespace
from typing import Any

import pytest

from distributed_privrl.core.config import RuntimeConfig
from distributed_privrl.core.progress import silent
from distributed_privrl.privacy.metrics import PublicValue
from distributed_privrl.rounds.round_server import RoundProgress
from distributed_privrl.runtime import launch, metrics
from distributed_privrl.runtime.metrics import GAUGES, MeteredProgress, show
from distributed_privrl.stages.training import STAGE, WatchesReservations, _ReservedEpsilon, _tell


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(
        metrics, "show", lambda **values: seen.append({k: v.value for k, v in values.items()})
    )
    return seen


def test_gauges_move_at_tenths_alone(shown: list[dict[str, Any]]) -> None:
    progress = MeteredProgress(lambda *facts: None)
    for done in range(1001):
        progress(STAGE, done, 1000)
        blocks = PublicValue(1 + done // 5)
        progress.reserved(STAGE, done, 1000, blocks=blocks, epsilon=PublicValue(done / 100))
    assert [one["epsilon_reserved"] for one in shown] == [0, 0.1, *range(1, 11)]
    assert {*shown[0]} == {"blocks_reserved", "epsilon_reserved"} < {*GAUGES}


def test_rounds_tell_what_the_ledger_holds(shown: list[dict[str, Any]]) -> None:
    plan: Any = SimpleNamespace(budget=object(), block_rounds=5, epsilon=lambda rounds: rounds / 8)
    status = RoundProgress(round_index=0, target=10, reserved=6)
    progress = MeteredProgress(lambda *facts: None)
    assert isinstance(progress, WatchesReservations)
    costs = _ReservedEpsilon(plan, told=True)
    _tell(progress, STAGE, status, costs)
    plan.budget = None
    _tell(progress, STAGE, status, _ReservedEpsilon(plan, told=True))
    assert shown == [{"blocks_reserved": 2, "epsilon_reserved": 0.75}]


def test_a_bare_number_passes_no_gauge() -> None:
    with pytest.raises(TypeError, match="bare float"):
        show(epsilon_reserved=1.0)  # type: ignore[arg-type]


def test_a_run_in_one_process_has_no_gauges() -> None:
    local, ray = RuntimeConfig(executor="local"), RuntimeConfig()
    told = MeteredProgress(silent)
    assert launch.metered(told, local) is told
    assert launch.metered(silent, ray) is silent
    assert isinstance(launch.metered(told, ray), MeteredProgress)
