"""The method that a plan names, and the stored figures that it rests on."""

import json

import pytest

from benchmarks.harness import RESULTS
from distributed_privrl.experiments.advice import EVIDENCE, Measured, advised_method
from distributed_privrl.experiments.registry import METHODS, parse_config

DATA = {"sensitive": "clinic/stays-v0", "unit": "patient_id", "units": 1000, "max_length": 40}


@pytest.mark.parametrize("measured", EVIDENCE, ids=str)
def test_a_figure_is_the_stored_one(measured: Measured) -> None:
    stored = json.loads((RESULTS / f"{measured.result}.json").read_text())["cells"]
    (cell,) = (one for one in stored if all(one.get(name) == value for name, value in measured.row))
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
