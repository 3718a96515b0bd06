"""Marginals do what they certify, and every planted bug is seen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import marginals as gates
from tests.planted import marginal_bugs
from tests.planted.marginal_bugs import Plant

Gate = Callable[[Path], None]
GATES = {
    "draws": gates.gate_certified_draws,
    "draws with correlations": gates.gate_certified_correlations,
    "counts": gates.gate_moved_counts,
    "correlations": gates.gate_moved_correlations,
    "bins": gates.gate_bins_from_what_was_released,
}
CASES: dict[str, tuple[Plant, Gate, str]] = {
    "rows are units": (
        marginal_bugs.rows_are_units,
        gates.gate_moved_counts,
        "3 rows move columns by 6.000, 2.000",
    ),
    "weights rounded up": (
        marginal_bugs.weights_rounded_up,
        gates.gate_moved_counts,
        "1 rows move columns by 2.000, 2.000",
    ),
    "columns as one histogram": (
        marginal_bugs.columns_as_one_histogram,
        gates.gate_moved_counts,
        "1 rows move columns by 2.000, 1.000",
    ),
    "scores twice as steep": (
        marginal_bugs.scores_twice_as_steep,
        gates.gate_moved_counts,
        r"moves scores by 1.333 of",
    ),
    "a count measured twice": (
        marginal_bugs.a_count_measured_twice,
        gates.gate_certified_draws,
        "step 1 states 2 releases, 3 were drawn",
    ),
    "half the noise": (
        marginal_bugs.half_the_noise,
        gates.gate_certified_draws,
        "step 1: scales of releases",
    ),
    "a choice for nothing": (
        marginal_bugs.a_choice_for_nothing,
        gates.gate_certified_draws,
        "step 1 states 2 choices, 4 were drawn",
    ),
    "one more of each": (
        marginal_bugs.one_more_step,
        gates.gate_certified_draws,
        "step 1 states 2 choices, 3 were drawn",
    ),
    "bins from exact counts": (
        marginal_bugs.bins_from_exact_counts,
        gates.gate_bins_from_what_was_released,
        "exact counts decide on bins",
    ),
    "exact total": (
        marginal_bugs.exact_total,
        gates.gate_bins_from_what_was_released,
        "exact counts decide on the total",
    ),
    "parts from exact counts": (
        marginal_bugs.parts_from_exact_counts,
        gates.gate_bins_from_what_was_released,
        "exact counts decide on the candidates",  # alike in parts, one is left out
    ),
    "candidates from exact counts": (
        marginal_bugs.candidates_from_exact_counts,
        gates.gate_bins_from_what_was_released,
        "exact counts decide on the candidates",
    ),
    "parts of exact counts are kept": (
        marginal_bugs.parts_of_exact_counts_are_kept,
        gates.gate_certified_draws,
        "marginals.safetensors holds exact counts",
    ),
    "exact counts are kept": (
        marginal_bugs.checkpoint_of_exact_counts,
        gates.gate_certified_draws,
        "marginals.safetensors holds exact counts",
    ),
    "correlations as one pair": (
        marginal_bugs.correlations_as_one_pair,
        gates.gate_moved_correlations,
        "1 rows move correlations by 2.828, 1.000 charged",
    ),
    "correlations of null alone": (
        marginal_bugs.correlations_of_null_alone,
        gates.gate_moved_correlations,
        "1 rows move correlations by 4.899, 4.000 charged",
    ),
    "products of whole rows": (
        marginal_bugs.products_of_whole_rows,
        gates.gate_moved_correlations,
        "3 rows move correlations by 8.485, 2.828 charged",
    ),
    "halves from exact counts": (
        marginal_bugs.halves_from_exact_counts,
        gates.gate_bins_from_what_was_released,
        "exact counts decide on the questions",
    ),
    "correlations measured twice": (
        marginal_bugs.correlations_measured_twice,
        gates.gate_certified_correlations,
        "step 1 states 1 releases, 2 were drawn",
    ),
    "sums of products are kept": (
        marginal_bugs.sums_of_products_are_kept,
        gates.gate_certified_correlations,
        "marginals.safetensors holds exact counts",
    ),
}


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.mark.parametrize("name", GATES)
def test_nothing_is_seen_where_nothing_is_wrong(name: str, tmp_path: Path) -> None:
    GATES[name](tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_seen(name: str, tmp_path: Path) -> None:
    plant, gate, message = CASES[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=message):
            gate(tmp_path)
