"""Marginals that are measured at once do what they certify, and every planted bug is seen."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.gates import one_shot as gates
from tests.gates.marginals import gate_certified_draws
from tests.planted import marginal_bugs, one_shot_bugs
from tests.planted.one_shot_bugs import Plant

Gate = Callable[[Path], None]


def moved(method: str) -> Gate:
    return lambda _: gates.gate_moved_vectors(method)


def choices(method: str) -> Gate:
    return lambda _: gates.gate_choices_from_what_was_released(method)


def draws(method: str) -> Gate:
    return partial(gate_certified_draws, method=method)


CASES: dict[str, tuple[Plant, Gate, str]] = {
    "a unit's weight above one": (
        marginal_bugs.rows_are_units,
        moved("pgm"),
        r"3 rows move step 0 by 3.000 of its charge",
    ),
    "weights rounded up": (
        marginal_bugs.weights_rounded_up,
        moved("privsyn"),
        r"1 rows move step 0 by 1.000 of its charge",
    ),
    "a marginal for nothing": (
        one_shot_bugs.a_marginal_for_nothing,
        draws("pgm"),
        "step 1 states 1 releases, 2 were drawn",
    ),
    "one marginal pays for all": (
        one_shot_bugs.one_marginal_pays_for_all,
        moved("pgm"),
        r"1 rows move step 1 by 2\.236 of its charge",
    ),
    "marginals by the rows": (
        one_shot_bugs.marginals_by_the_rows,
        choices("pgm"),
        "exact counts decide on what call 1 measures",
    ),
    "exact scores select": (
        one_shot_bugs.exact_scores_select,
        choices("privsyn"),
        "exact counts decide on what",
    ),
    "scores pay as one": (
        one_shot_bugs.scores_pay_as_one,
        moved("privsyn"),
        r"1 rows move step 1 by 3.\d+ of its charge",
    ),
    "selection that nobody charges": (
        one_shot_bugs.selection_without_its_step,
        draws("privsyn"),
        "step 2 states 1 releases, 2 were drawn",
    ),
    "weights above their sum": (
        one_shot_bugs.weights_above_their_sum,
        moved("privsyn"),
        r"1 rows move step 2 by \d.\d+ of its charge",
    ),
    "private bins": (
        one_shot_bugs.bins_from_exact_counts,
        choices("privsyn"),
        "exact counts decide on|the total is exact",
    ),
}


@pytest.fixture(autouse=True)
def no_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.mark.parametrize("method", gates.METHODS)
@pytest.mark.parametrize("gate", [moved, choices, draws])
def test_nothing_is_seen_where_nothing_is_wrong(
    gate: Callable[[str], Gate], method: str, tmp_path: Path
) -> None:
    gate(method)(tmp_path)


@pytest.mark.parametrize("name", CASES)
def test_a_planted_bug_is_seen(name: str, tmp_path: Path) -> None:
    plant, gate, message = CASES[name]
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        with pytest.raises(AssertionError, match=message):
            gate(tmp_path)
