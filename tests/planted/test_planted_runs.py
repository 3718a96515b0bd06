"""Runs of PrivORL and of the expert level do what they certify, and every planted bug is seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert import report as expert_report
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker
from tests.gates.expert import gate_certified_experts
from tests.gates.privorl import (
    gate_certified_autoregressive,
    gate_certified_steps,
    gate_certified_tokens,
    gate_certified_trajectories,
    gate_certified_transitions,
)
from tests.gates.whole_runs import watched
from tests.planted import fragment_bugs, round_bugs, run_bugs, unit_bugs
from tests.planted.round_bugs import Plant
from tests.worlds import crowd, mazes, walks

Gate = Callable[[Path, DatasetStore], None]
GATES: dict[str, tuple[Gate, Callable[[Path], DatasetStore]]] = {
    "privorl_n": (gate_certified_transitions, mazes.maze_store),
    "privorl_ar": (gate_certified_autoregressive, mazes.maze_store),
    "privorl_j": (gate_certified_trajectories, walks.walk_store),
    "privorl_ar_j": (gate_certified_steps, walks.walk_store),
    "dp_transformer": (gate_certified_tokens, walks.walk_store),
    "expert": (gate_certified_experts, crowd.crowd_store),
}
CASES: dict[str, tuple[Plant, str]] = {
    "clip x 2": (unit_bugs.wrong_clip_norm(2), "a unit's vector has norm (2.000|1.[0-9]+) C"),
    "z / 2": (round_bugs.wrong_scale(0.5), "noise of the rounds: variance: 0.2[3-7]"),
    "q x 2": (run_bugs.coins_fall_twice_as_often, "units that took part"),
    "a unit twice": (run_bugs.a_unit_twice, "units added .* vectors to a round"),
    "overlapping shards": (run_bugs.shards_overlap, "in the shards of two workers"),
    "uncharged round": (run_bugs.uncharged_round, "6 rounds are certified, 7 draws were made"),
    "denominator / 2": (run_bugs.half_the_denominator, "public denominator: off by"),
}
COUPLED: dict[str, tuple[Plant, str]] = {
    "coupled noise levels": (fragment_bugs.coupled_noise_levels, "a sum of units"),
    "coupled steps": (fragment_bugs.coupled_steps, "a sum of units"),
    "coupled tokens": (fragment_bugs.coupled_tokens, "a sum of units"),
}
"""What couples fragments in the model, and no gate on single rounds can see."""
SEEN = [
    *(("privorl_n", name) for name in CASES),
    *(("expert", name) for name in CASES),
    ("privorl_ar", "clip x 2"),
    ("privorl_ar_j", "clip x 2"),
    ("privorl_j", "clip x 2"),
    ("privorl_j", "coupled noise levels"),
    ("privorl_ar_j", "coupled steps"),
    ("dp_transformer", "clip x 2"),
    ("dp_transformer", "coupled tokens"),
]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetStore]:
    return {name: make(tmp_path_factory.mktemp(name)) for name, (_, make) in GATES.items()}


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    monkeypatch.setattr(expert_report, "write_private_report", lambda *_, **__: None)


@pytest.mark.parametrize("method", GATES)
def test_a_run_does_what_it_certifies(
    method: str, tmp_path: Path, stores: dict[str, DatasetStore]
) -> None:
    GATES[method][0](tmp_path, stores[method])


@pytest.mark.parametrize(("method", "bug"), SEEN)
def test_the_gate_sees_the_bug(
    method: str,
    bug: str,
    tmp_path: Path,
    stores: dict[str, DatasetStore],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant, what_it_says = {**CASES, **COUPLED}[bug]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=what_it_says):
            GATES[method][0](tmp_path, stores[method])


def test_rounds_that_read_what_the_filter_is_charged_for_are_seen(
    tmp_path: Path, stores: dict[str, DatasetStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        run_bugs.charged_trajectories_forgotten(patch)
        with pytest.raises(AssertionError, match="trajectories from 0 on are read, from 5 charged"):
            gate_certified_experts(tmp_path, stores["expert"])


def test_watching_leaves_nothing_behind() -> None:
    classes = (ParameterServer, LocalUpdateWorker, SecureNoise)
    before = [dict(vars(one)) for one in classes]
    with watched(10.0):
        assert [dict(vars(one)) for one in classes] != before
    assert [dict(vars(one)) for one in classes] == before
