"""Every bug of DP-FedAvg is planted into the package, and the gate that must see it does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import federated, gates
from tests.gates.federated import FederatedSystem
from tests.planted import federated_bugs, round_bugs, unit_bugs

CASES: dict[str, tuple[round_bugs.Plant, Callable[[FederatedSystem], None], str]] = {
    "each member clipped at C": (
        federated_bugs.clip_each_group_at_c,
        federated.gate_trajectory_canaries,
        r"\(flat, batch\) moves the sum by (1.9|2.0)",
    ),
    "each layer clipped at the member's bound": (
        federated_bugs.clip_by_members_alone,
        federated.gate_trajectory_canaries,
        r"\(per_layer, batch\) moves the sum by 1.4",
    ),
    "no clip after the last batch": (
        federated_bugs.no_clip_after_the_last_batch,
        federated.gate_trajectory_canaries,
        r"\(concatenated, batch\) moves the sum by",
    ),
    "sum clipped": (
        federated_bugs.clip_the_sum,
        federated.gate_trajectory_canaries,
        "moves the sum|is clipped to",
    ),
    "clip x 1.2": (
        federated_bugs.wrong_clip_norm,
        federated.gate_trajectory_canaries,
        "moves the sum by 1.2|moves the sum by 1.19",
    ),
    "NaN update": (
        federated_bugs.bad_units_kept,
        federated.gate_listed_bad_units,
        "is not finite",
    ),
    "NaN update, as a canary": (
        federated_bugs.bad_units_kept,
        federated.gate_trajectory_canaries,
        "moves the sum by nan",
    ),
    "NaN drops its batch": (
        federated_bugs.a_bad_unit_drops_the_others,
        federated.gate_trajectory_canaries,
        "moves the sum|is not null",
    ),
    "realised denominator": (
        federated_bugs.realised_denominator,
        federated.gate_federated_denominator,
        r"variance of the batch size in the sums: 0\.[01]",  # 1 is right
    ),
    "rows are units": (
        unit_bugs.rows_are_units,
        federated.gate_split_trajectories,
        r"a unit of 4 trajectories .* moves the sum",
    ),
    "trajectories are units": (
        unit_bugs.trajectories_are_units,
        federated.gate_split_trajectories,
        r"a unit of 4 trajectories .* moves the sum",
    ),
    "coins by row": (
        unit_bugs.rows_are_units,
        gates.gate_poisson_sampling,
        "a unit took part more than once",
    ),
    "fixed batches": (
        round_bugs.fixed_batches,
        gates.gate_poisson_sampling,
        "inclusion|batch size",
    ),
    "sigma x 0.8": (round_bugs.wrong_scale(0.8), gates.gate_noise_scale, "variance"),
    "noise twice, charged once": (
        round_bugs.noise_twice,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_sees_the_bug(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, gate, what_it_says = CASES[name]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=what_it_says):
            gate(FederatedSystem(tmp_path))
