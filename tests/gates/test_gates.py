"""The gates hold on the system as it is; `tests/planted` shows that they can fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import gates, norms, quantiles, releases
from tests.gates.system import System

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

GATES = [
    gates.gate_noise_scale,
    gates.gate_fresh_noise,
    gates.gate_poisson_sampling,
    gates.gate_charged_draws,
    gates.gate_orthogonal_canaries,
    gates.gate_public_denominator,
    gates.gate_empty_batch,
    gates.gate_bad_units,
    norms.gate_norm_canaries,
    norms.gate_large_norms,
    norms.gate_split_units,
    quantiles.gate_quantiles,
    quantiles.gate_choices,
    releases.gate_release_sensitivity,
    releases.gate_every_cell,
    releases.gate_charged_releases,
]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_the_gate_holds(gate: Callable[[System], None], tmp_path: Path) -> None:
    gate(System(tmp_path))
