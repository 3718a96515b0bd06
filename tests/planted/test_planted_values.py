"""Every planted mistake in the sums behind a policy's value is seen by the gate."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates.values import gate_value_sums
from tests.planted import value_bugs

CASES: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], str]] = {
    "models of real rows": (value_bugs.models_of_real_rows, "by more than is charged"),
    "a unit counts twice": (value_bugs.a_unit_counts_twice, "by more than is charged"),
    "values beside those before": (
        value_bugs.values_beside_those_before,
        "by more than is charged",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, message = CASES[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        gate_value_sums(tmp_path)
