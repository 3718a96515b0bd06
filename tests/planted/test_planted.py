"""Every bug is planted into the package, and the gate that must see it does."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import gates, norms
from tests.gates.system import System
from tests.planted import bugs

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

CASES: dict[str, tuple[bugs.Plant, Callable[[System], None]]] = {
    "sigma x 0.8": (bugs.wrong_scale(0.8), gates.gate_noise_scale),
    "sigma x 1.25": (bugs.wrong_scale(1.25), gates.gate_noise_scale),
    "sigma x 0.8, as an attacker sees it": (bugs.wrong_scale(0.8), gates.gate_orthogonal_canaries),
    "clip x 1.2": (bugs.wrong_clip_norm(1.2), norms.gate_norm_canaries),
    "clip x 1.2, as an attacker sees it": (
        bugs.wrong_clip_norm(1.2),
        gates.gate_orthogonal_canaries,
    ),
    "clip x 0.8": (bugs.wrong_clip_norm(0.8), norms.gate_norm_canaries),
    "noise twice": (bugs.noise_twice, gates.gate_noise_scale),
    "noise twice, charged once": (bugs.noise_twice, gates.gate_charged_draws),
    "noise per worker": (bugs.noise_per_worker, gates.gate_noise_scale),
    "noise that is not Gaussian": (bugs.laplace_noise, gates.gate_noise_scale),
    "seeded noise": (bugs.seeded_keys, gates.gate_fresh_noise),
    "seeded coins": (bugs.seeded_keys, gates.gate_poisson_sampling),
    "same coins": (bugs.same_coins_on_all_workers, gates.gate_poisson_sampling),
    "noise used again": (bugs.noise_used_again, gates.gate_fresh_noise),
    "fixed batches": (bugs.fixed_batches, gates.gate_poisson_sampling),
    "shuffled epochs": (bugs.shuffled_epochs, gates.gate_poisson_sampling),
    "repeated batches": (bugs.repeated_batches, gates.gate_poisson_sampling),
    "q x 1.2": (bugs.wrong_sampling_probability, gates.gate_poisson_sampling),
    "with replacement": (bugs.units_drawn_with_replacement, gates.gate_poisson_sampling),
    "unreserved block": (bugs.unreserved_block, gates.gate_charged_draws),
    "reserved too late": (bugs.reserved_too_late, gates.gate_charged_draws),
    "uncharged draw": (bugs.uncharged_draw, gates.gate_charged_draws),
    "lost block not charged": (bugs.lost_block_not_charged, gates.gate_charged_draws),
    "NaN update": (bugs.bad_units_kept, gates.gate_bad_units),
    "NaN update, as a canary": (bugs.bad_units_kept, norms.gate_norm_canaries),
    "NaN raises": (bugs.bad_units_raise, gates.gate_bad_units),
    "NaN is logged": (bugs.bad_units_are_logged, gates.gate_bad_units),
    "NaN drops its batch": (bugs.bad_units_drop_the_batch, norms.gate_norm_canaries),
    "NaN repeats its round": (bugs.bad_units_end_the_block, gates.gate_bad_units),
    "each layer clipped": (bugs.clip_each_layer, norms.gate_norm_canaries),
    "each copy clipped": (bugs.clip_each_copy, norms.gate_split_units),
    "sum clipped": (bugs.clip_the_sum, norms.gate_norm_canaries),
    "huge units lost": (bugs.huge_units_are_lost, norms.gate_norm_canaries),
    "float32 norms": (bugs.float32_norms, norms.gate_large_norms),
    "float32 norms in book-keeping": (bugs.float32_row_kernels, norms.gate_large_norms),
    "rows are units": (bugs.rows_are_units, norms.gate_split_units),
    "trajectories are units": (bugs.trajectories_are_units, norms.gate_split_units),
    "realised denominator": (bugs.realised_denominator, gates.gate_public_denominator),
    "batch in the server": (bugs.server_divides_by_the_batch, gates.gate_public_denominator),
    "counted denominator": (bugs.counted_denominator, gates.gate_public_denominator),
    "empty rounds left out": (bugs.empty_rounds_left_out, gates.gate_empty_batch),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_sees_the_bug(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, gate = CASES[name]
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError):
            gate(System(tmp_path))
