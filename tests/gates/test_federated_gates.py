"""The gates hold on rounds of DP-FedAvg; `tests/planted` shows that they can fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import federated, gates
from tests.gates.federated import FederatedSystem

GATES = [
    gates.gate_noise_scale,
    gates.gate_fresh_noise,
    gates.gate_poisson_sampling,
    gates.gate_charged_draws,
    gates.gate_empty_batch,
    gates.gate_bad_units,
    federated.gate_listed_bad_units,
    federated.gate_trajectory_canaries,
    federated.gate_split_trajectories,
    federated.gate_federated_denominator,
]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_the_gate_holds(gate: Callable[[FederatedSystem], None], tmp_path: Path) -> None:
    gate(FederatedSystem(tmp_path))
