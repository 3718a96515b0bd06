"""The gates hold on the system as it is; `tests/planted` shows that they can fail."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import (
    gates,
    integers,
    keys,
    norms,
    quantiles,
    releases,
    selections,
    sums,
    trajectories,
)
from tests.gates.system import System
from tests.gates.trajectories import TrajectorySystem

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

GATES = [
    gates.gate_noise_scale,
    gates.gate_fresh_noise,
    keys.gate_many_keys,
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
    integers.gate_integer_noise,
    integers.gate_paid_rounding,
    integers.gate_exact_sums,
    releases.gate_release_sensitivity,
    releases.gate_every_cell,
    releases.gate_charged_releases,
    releases.gate_exact_statistics,
    selections.gate_selections,
    selections.gate_exponential_choices,
    sums.gate_sums_that_round_badly,
    sums.gate_one_answer,
]


@pytest.mark.parametrize("gate", GATES, ids=lambda gate: gate.__name__)
def test_the_gate_holds(gate: Callable[[System], None], tmp_path: Path) -> None:
    gate(System(tmp_path))


TRAJECTORY_GATES = [
    gates.gate_poisson_sampling,
    gates.gate_charged_draws,
    gates.gate_orthogonal_canaries,
    gates.gate_public_denominator,
    gates.gate_empty_batch,
    gates.gate_bad_units,
    norms.gate_norm_canaries,
    norms.gate_large_norms,
    norms.gate_split_units,
    trajectories.gate_one_vector_a_unit,
    trajectories.gate_overflowing_fragments,
    trajectories.gate_episodes_apart,
    trajectories.gate_canaries_of_the_model,
]


@pytest.mark.parametrize("gate", TRAJECTORY_GATES, ids=lambda gate: gate.__name__)
def test_the_gate_holds_for_trajectories(
    gate: Callable[[TrajectorySystem], None], tmp_path: Path
) -> None:
    gate(TrajectorySystem(tmp_path))
