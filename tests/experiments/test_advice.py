"""The method that a plan names, and the stored figures that it rests on."""

import json
from typing import Any

import pytest

from benchmarks.harness import RESULTS
from distributed_privrl.experiments.advice import EVIDENCE, advised_method
from distributed_privrl.experiments.registry import METHODS, parse_config
from distributed_privrl.methods.expert.verdict import EVIDENCE as OF_EXPERTS
from distributed_privrl.methods.value_iteration.verdict import EVIDENCE as OF_COUNTS
from distributed_privrl.stages.measured import Measured

DATA = {"sensitive": "clinic/stays-v0", "unit": "patient_id", "units": 1000, "max_length": 40}


NEWER = {"utility_tables": "utility_tables_fleet"}
"""Files that measured some of a file's cells again."""


def cells_of(result: str, measured: Measured) -> list[dict[str, Any]]:
    stored = json.loads((RESULTS / f"{result}.json").read_text())["cells"]
    return [one for one in stored if all(one.get(name) == value for name, value in measured.row)]


@pytest.mark.parametrize("measured", [*EVIDENCE, *OF_EXPERTS, *OF_COUNTS], ids=str)
def test_a_figure_is_the_stored_one_and_the_newest(measured: Measured) -> None:
    (cell,) = cells_of(measured.result, measured)
    if measured.result in NEWER:
        assert not cells_of(NEWER[measured.result], measured)
    value = cell[measured.figure]
    found = float(value.split()[0]) if isinstance(value, str) else value
    assert float(f"{found:.3g}") == measured.value


@pytest.mark.parametrize(
    ("method", "public", "advised"),
    [
        ("privorl_ar", [], "marginals"),
        ("privorl_n", ["clinic/public-v0"], "privorl_ar"),
        ("privorl_ar_j", [], "marginals_j"),
        ("privorl_j", ["clinic/public-v0"], "privorl_ar_j"),
        ("primorl", [], None),
    ],
)
def test_advice_follows_from_public_facts(
    method: str, public: list[str], advised: str | None
) -> None:
    values = {
        "method": method,
        "data": {**DATA, "public": public, "environment": "Pendulum-v1"},
        "privacy": {"epsilon": 4, "delta": 1e-5},
    }
    if method != "primorl":
        values["output"] = {"dataset": "clinic/private-v0", "size": 10}
    advice = advised_method(parse_config(values, source="test"))
    assert (None if advice is None else advice.method) == advised
    if advice is not None:
        assert advice.method in METHODS
        assert len(advice.measured) == 2
