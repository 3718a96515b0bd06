"""Every planted leak of a whole run of `policy_value` is seen by the gate on what may leave."""

from pathlib import Path

import pytest

from tests.gates.value_leaks import gate_nothing_leaves, judged_run
from tests.planted import value_leak_bugs
from tests.planted.value_leak_bugs import Plant

CASES: dict[str, tuple[Plant, str]] = {
    "mean without noise": (
        value_leak_bugs.mean_without_noise,
        r"(report|value)\.json holds the exact (value|return|gain)",
    ),
    "sums without noise are kept": (
        value_leak_bugs.sums_without_noise_are_kept,
        "sums.safetensors holds exact counts",
    ),
    "number of rows": (
        value_leak_bugs.number_of_rows_is_told,
        "value.json holds the number of days",
    ),
    "agent of real rows": (
        value_leak_bugs.agent_of_real_rows,
        "safetensors's header holds a sensitive column's statistic",
    ),
    "numbers of units are sent": (
        value_leak_bugs.numbers_of_units_are_sent,
        "an argument of a worker holds exact counts",
    ),
    "values of units are logged": (value_leak_bugs.values_of_units_are_logged, "a run logs"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_leak_is_seen(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, message = CASES[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        gate_nothing_leaves(judged_run(tmp_path))
