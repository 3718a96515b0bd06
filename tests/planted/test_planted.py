"""Every bug is planted into the package, and the gate that must see it does."""

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

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
from tests.planted import (
    fragment_bugs,
    integer_bugs,
    quantile_bugs,
    release_bugs,
    round_bugs,
    selection_bugs,
    unit_bugs,
)

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook")

CASES: dict[str, tuple[round_bugs.Plant, Callable[[System], None], str]] = {
    "sigma x 0.8": (round_bugs.wrong_scale(0.8), gates.gate_noise_scale, "variance"),
    "sigma x 1.25": (round_bugs.wrong_scale(1.25), gates.gate_noise_scale, "variance"),
    "sigma x 0.8, to an attacker": (
        round_bugs.wrong_scale(0.8),
        gates.gate_orthogonal_canaries,
        "GDP mu",
    ),
    "sigma x 1.25, to an attacker": (
        round_bugs.wrong_scale(1.25),
        gates.gate_orthogonal_canaries,
        "GDP mu",
    ),
    "charged as 1.25 sigma": (
        round_bugs.wrong_event(noise_multiplier=1.25),
        gates.gate_noise_scale,
        "variance",
    ),
    "charged as q / 2": (
        round_bugs.wrong_event(sampling_probability=0.5),
        gates.gate_poisson_sampling,
        "another q",
    ),
    "clip x 1.2": (
        unit_bugs.wrong_clip_norm(1.2),
        norms.gate_norm_canaries,
        "moves the sum by 1.19999",
    ),
    "clip x 1.2, to an attacker": (
        unit_bugs.wrong_clip_norm(1.2),
        gates.gate_orthogonal_canaries,
        "GDP mu",
    ),
    "clip x 0.8": (unit_bugs.wrong_clip_norm(0.8), norms.gate_norm_canaries, "clipped to 0.8"),
    "noise twice": (round_bugs.noise_twice, gates.gate_noise_scale, "variance"),
    "noise twice, charged once": (
        round_bugs.noise_twice,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
    "noise per worker": (
        round_bugs.noise_per_worker,
        gates.gate_noise_scale,
        "2 workers.*variance",
    ),
    "noise that is not Gaussian": (
        round_bugs.laplace_noise,
        gates.gate_noise_scale,
        "not normal|variance",
    ),
    "seeded noise": (round_bugs.seeded_keys, gates.gate_fresh_noise, "noise of rounds"),
    "noise of 2^16 keys": (
        round_bugs.few_keys_of_noise,
        keys.gate_many_keys,
        "noise: .* 16 random",
    ),
    "coins of 2^16 keys": (
        round_bugs.few_keys_of_coins,
        keys.gate_many_keys,
        "coins: .* 16 random",
    ),
    "seeded coins": (round_bugs.seeded_keys, gates.gate_poisson_sampling, "inclusion|batch size"),
    "same coins": (
        round_bugs.same_coins_on_all_workers,
        gates.gate_poisson_sampling,
        "inclusion|batch size",
    ),
    "mirrored noise": (round_bugs.mirrored_noise, gates.gate_noise_scale, "repeat another's size"),
    "noise used again": (round_bugs.noise_used_again, gates.gate_fresh_noise, "noise of rounds"),
    "fixed batches": (
        round_bugs.fixed_batches,
        gates.gate_poisson_sampling,
        r"batch size.* 0\.[0-9]* times|successive rounds",
    ),
    "shuffled epochs": (
        round_bugs.shuffled_epochs,
        gates.gate_poisson_sampling,
        r"batch size.* 0\.[0-9]* times|successive rounds",
    ),
    "repeated batches": (
        round_bugs.repeated_batches,
        gates.gate_poisson_sampling,
        "inclusion|batch size",
    ),
    "q x 1.2": (round_bugs.wrong_sampling_probability, gates.gate_poisson_sampling, "inclusion"),
    "with replacement": (
        round_bugs.units_drawn_with_replacement,
        gates.gate_poisson_sampling,
        "more than once",
    ),
    "float32 sums": (round_bugs.float32_sums, sums.gate_sums_that_round_badly, "moves the sum by"),
    "coins by the round": (round_bugs.coins_by_the_round, sums.gate_one_answer, "coins of an old"),
    "fresh coins for a repeated call": (
        round_bugs.fresh_coins,
        sums.gate_one_answer,
        "another answer",
    ),
    "fresh draws for a repeated call": (
        round_bugs.fresh_draws,
        sums.gate_one_answer,
        "another answer",
    ),
    "integers x 0.8": (
        integer_bugs.wrong_spread("integer_gaussian", 0.8),
        integers.gate_integer_noise,
        "variance",
    ),
    "integers x 1.25": (
        integer_bugs.wrong_spread("integer_gaussian", 1.25),
        integers.gate_integer_noise,
        "variance",
    ),
    "Laplace integers x 0.8": (
        integer_bugs.wrong_spread("integer_laplace", 0.8),
        integers.gate_integer_noise,
        "size of the noise",
    ),
    "integers with noise for one step": (
        integer_bugs.sensitivity_left_out,
        integers.gate_integer_noise,
        "IntegerGaussianRelease: variance",
    ),
    "integers charged as Gaussian": (
        integer_bugs.charged_as_gaussian,
        integers.gate_integer_noise,
        "integers are charged as gaussian",
    ),
    "integers from floats": (
        integer_bugs.drawn_from_floats,
        integers.gate_integer_noise,
        "drawn from float64",
    ),
    "rounding that is not paid for": (
        integer_bugs.rounding_is_free_gaussian,
        integers.gate_paid_rounding,
        "Gaussian.*steps.* are paid",
    ),
    "rounding that is not paid for, Laplace": (
        integer_bugs.rounding_is_free_laplace,
        integers.gate_paid_rounding,
        "Laplace.*steps.* are paid",
    ),
    "rounded after the sum": (
        integer_bugs.rounded_after_the_sum,
        integers.gate_exact_sums,
        "more than its own steps|depends on its order",
    ),
    "unreserved block": (
        round_bugs.unreserved_block,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
    "reserved too late": (
        round_bugs.reserved_too_late,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
    "uncharged draw": (
        round_bugs.uncharged_draw,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
    "lost block not charged": (
        round_bugs.lost_block_not_charged,
        gates.gate_charged_draws,
        "a crash after",
    ),
    "NaN update": (unit_bugs.bad_units_kept, gates.gate_bad_units, "is not finite"),
    "NaN update, as a canary": (unit_bugs.bad_units_kept, norms.gate_norm_canaries, "a nan unit"),
    "NaN raises": (unit_bugs.bad_units_raise, gates.gate_bad_units, "badness raised"),
    "NaN is logged": (unit_bugs.bad_units_are_logged, gates.gate_bad_units, "can be seen"),
    "NaN drops its batch": (
        unit_bugs.bad_units_drop_the_batch,
        norms.gate_norm_canaries,
        "a nan unit",
    ),
    "each layer clipped": (
        unit_bugs.clip_each_layer,
        norms.gate_norm_canaries,
        "moves the sum by 1.4",
    ),
    "each copy clipped": (
        unit_bugs.clip_each_copy,
        norms.gate_split_units,
        "moves the sum by (2.99|3.00)",
    ),
    "sum clipped": (unit_bugs.clip_the_sum, norms.gate_norm_canaries, "moves the sum"),
    "huge units lost": (unit_bugs.huge_units_are_lost, norms.gate_norm_canaries, "clipped to 0.5"),
    "float32 norms": (unit_bugs.float32_norms, norms.gate_large_norms, "moves the sum by 1.001"),
    "float32 norms in book-keeping": (
        unit_bugs.float32_row_kernels,
        norms.gate_large_norms,
        "moves the sum by 1.001",
    ),
    "rows are units": (unit_bugs.rows_are_units, norms.gate_split_units, "moves the sum by 1[12]"),
    "trajectories are units": (
        unit_bugs.trajectories_are_units,
        norms.gate_split_units,
        "moves the sum",
    ),
    "realised denominator": (
        round_bugs.realised_denominator,
        gates.gate_public_denominator,
        "batch size",
    ),
    "batch in the server": (
        round_bugs.server_divides_by_the_batch,
        gates.gate_public_denominator,
        "batch size",
    ),
    "counted denominator": (
        round_bugs.counted_denominator,
        gates.gate_public_denominator,
        "batch size",
    ),
    "empty rounds left out": (round_bugs.empty_rounds_left_out, gates.gate_empty_batch, "left out"),
    "quantiles' sensitivity / 2": (
        quantile_bugs.wrong_sensitivity(Fraction(1, 2)),
        quantiles.gate_quantiles,
        "lose 1.0",
    ),
    "quantiles' sensitivity x 2": (
        quantile_bugs.wrong_sensitivity(Fraction(2)),
        quantiles.gate_quantiles,
        "alone",
    ),
    "quantiles of a removed unit": (
        quantile_bugs.constants_of_another_relation,
        quantiles.gate_quantiles,
        "under replace_one lose",
    ),
    "quantiles of rows": (quantile_bugs.rows_are_units, quantiles.gate_quantiles, "lose"),
    "quantiles at the whole epsilon each": (
        quantile_bugs.each_choice_at_the_whole_epsilon,
        quantiles.gate_quantiles,
        "lose 1.[0-9]+",
    ),
    "two quantiles charged as one": (
        quantile_bugs.one_choice_charged,
        quantiles.gate_quantiles,
        "lose",
    ),
    "quantiles of NaN raise": (
        quantile_bugs.bad_values_are_errors,
        quantiles.gate_quantiles,
        "not finite",
    ),
    "counts' sensitivity / sqrt 2": (
        release_bugs.wrong_sensitivity(0.5**0.5),
        releases.gate_release_sensitivity,
        "a unit moves a release by 0.707",
    ),
    "counts' sensitivity x 1.25": (
        release_bugs.wrong_sensitivity(1.25),
        releases.gate_release_sensitivity,
        "the noise is 1.25",
    ),
    "steps not told apart": (
        release_bugs.repeated_cells,
        releases.gate_release_sensitivity,
        "a unit moves a release by 1.",
    ),
    "empty cells stay empty": (
        release_bugs.empty_cells_stay_empty,
        releases.gate_every_cell,
        "cells got no noise",
    ),
    "counts' noise x 0.5": (release_bugs.wrong_scale, releases.gate_every_cell, "variance"),
    "counts released twice": (
        release_bugs.released_twice,
        releases.gate_charged_releases,
        "3 steps made 6 draws|not covered",
    ),
    "counts reserved too late": (
        release_bugs.reserved_too_late,
        releases.gate_charged_releases,
        "a draw is not covered",
    ),
    "sums rounded at the end": (
        release_bugs.sums_rounded_at_the_end,
        releases.gate_exact_statistics,
        "moves a sum by [0-9]+ steps more",
    ),
    "pairs rounded together": (
        release_bugs.pairs_rounded_together,
        releases.gate_exact_statistics,
        "moves a sum by [0-9]+ steps more",
    ),
    "choices' scale x 0.75": (quantile_bugs.wrong_scale, quantiles.gate_choices, "stated law"),
    "exponential choices' scale x 0.5": (
        selection_bugs.wrong_scale(0.5),
        selections.gate_exponential_choices,
        "law that is charged",
    ),
    "exponential choices' scale x 1.25": (
        selection_bugs.wrong_scale(1.25),
        selections.gate_exponential_choices,
        "law that is charged",
    ),
    "exponential choices by permute-and-flip": (
        selection_bugs.permute_and_flip,
        selections.gate_exponential_choices,
        "law that is charged",
    ),
    "scale of monotone scores": (
        selection_bugs.scale_of_monotone_scores,
        selections.gate_selections,
        "range over 2.000, charged 1",
    ),
    "half of a choice charged": (
        selection_bugs.half_charged,
        selections.gate_selections,
        "range over 1.000, charged 0.5",
    ),
    "choices noisier than charged": (
        selection_bugs.noisier_than_charged,
        selections.gate_selections,
        "range over 0.500 alone",
    ),
}


TRAJECTORY_CASES: dict[str, tuple[round_bugs.Plant, Callable[[TrajectorySystem], None], str]] = {
    "each fragment clipped": (
        unit_bugs.clip_each_copy,
        norms.gate_norm_canaries,
        r"a huge unit .* moves the sum by [0-9]{2}",
    ),
    "each fragment clipped, in the model": (
        unit_bugs.clip_each_copy,
        trajectories.gate_canaries_of_the_model,
        r"a huge unit of 1 fragments \(TransformerConfig\) moves the sum",
    ),
    "clip x 1.2": (
        unit_bugs.wrong_clip_norm(1.2),
        norms.gate_norm_canaries,
        "moves the sum by 1.19999",
    ),
    "clip x 1.2, in the model": (
        unit_bugs.wrong_clip_norm(1.2),
        trajectories.gate_canaries_of_the_model,
        "moves the sum by 1.19999",
    ),
    "each layer clipped": (
        unit_bugs.clip_each_layer,
        trajectories.gate_canaries_of_the_model,
        "moves the sum by",
    ),
    "sum clipped": (unit_bugs.clip_the_sum, norms.gate_norm_canaries, "moves the sum"),
    "NaN update": (
        unit_bugs.bad_units_kept,
        trajectories.gate_overflowing_fragments,
        "overflowing one of 1 fragments .* moves the sum by nan",
    ),
    "NaN drops its batch": (
        unit_bugs.bad_units_drop_the_batch,
        trajectories.gate_overflowing_fragments,
        "overflowing one of",
    ),
    "episodes are units": (
        unit_bugs.trajectories_are_units,
        norms.gate_split_units,
        "a unit of 4 trajectories .* moves the sum",
    ),
    "fragments are units": (
        unit_bugs.rows_are_units,
        gates.gate_poisson_sampling,
        "a unit took part more than once",
    ),
    "fragments are units, as canaries": (
        unit_bugs.rows_are_units,
        norms.gate_norm_canaries,
        "a huge unit .* moves the sum by [0-9]{2}",
    ),
    "coins by fragment": (
        fragment_bugs.coins_of_fragments,
        gates.gate_poisson_sampling,
        "inclusion of a unit",
    ),
    "coins by fragment, to an attacker": (
        fragment_bugs.coins_of_fragments,
        gates.gate_orthogonal_canaries,
        "canaries that took part",
    ),
    "fixed batches": (
        round_bugs.fixed_batches,
        gates.gate_poisson_sampling,
        "inclusion|batch size",
    ),
    "sum of fragments": (
        fragment_bugs.sum_of_fragments,
        trajectories.gate_one_vector_a_unit,
        "a unit of 10 fragments is [0-9.]+ times",
    ),
    "one fragment of a unit": (
        fragment_bugs.one_fragment_drawn,
        trajectories.gate_one_vector_a_unit,
        "fragments is [0-9.]+ times what it must be",
    ),
    "order of fragments": (
        fragment_bugs.later_fragments_count_less,
        trajectories.gate_one_vector_a_unit,
        "fragments is [0-9.]+ times what it must be",
    ),
    "a unit over shards": (
        fragment_bugs.units_over_shards,
        trajectories.gate_one_vector_a_unit,
        "fragments lie in 2 shards",
    ),
    "denominator by fragments": (
        fragment_bugs.counted_fragments,
        gates.gate_public_denominator,
        "batch size",
    ),
    "fragments across episodes": (
        fragment_bugs.fragments_across_episodes,
        trajectories.gate_episodes_apart,
        "a unit has no fragments|fragments change when episode",
    ),
    "links across episodes": (
        fragment_bugs.links_across_episodes,
        trajectories.gate_episodes_apart,
        "fragments change when episode 0 is gone",
    ),
    "padding across episodes": (
        fragment_bugs.padding_across_episodes,
        trajectories.gate_episodes_apart,
        "fragments change when episode",
    ),
    "clock of the longest": (
        fragment_bugs.clock_of_the_longest,
        trajectories.gate_episodes_apart,
        "fragments change when episode 11",
    ),
    "scaled by everybody": (
        fragment_bugs.scaled_by_the_longest,
        trajectories.gate_episodes_apart,
        "fragments change when episode",
    ),
    "noise twice, charged once": (
        round_bugs.noise_twice,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
    "uncharged draw": (
        round_bugs.uncharged_draw,
        gates.gate_charged_draws,
        "a draw is not covered",
    ),
    "empty rounds left out": (round_bugs.empty_rounds_left_out, gates.gate_empty_batch, "left out"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_gate_sees_the_bug(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _must_fail(System(tmp_path), *CASES[name], monkeypatch)


@pytest.mark.parametrize("name", TRAJECTORY_CASES)
def test_the_gate_sees_the_bug_in_trajectories(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _must_fail(TrajectorySystem(tmp_path), *TRAJECTORY_CASES[name], monkeypatch)


def _must_fail(
    system: Any,
    plant: round_bugs.Plant,
    gate: Callable[[Any], None],
    what_it_says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=what_it_says):
            gate(system)
