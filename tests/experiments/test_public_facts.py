"""What a report says was public before: what is declared and chosen, and nothing that is found."""

from typing import Any

import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete

from distributed_privrl.core.config import DataConfig, OutputConfig
from distributed_privrl.experiments.public_facts import facts_section
from distributed_privrl.privacy.metrics import PublicValue
from tests.evaluation.named import info_of

OUTPUT = OutputConfig(dataset="some/private-v0", size=500)


def facts(data: DataConfig, info: Any) -> dict[str, Any]:
    metrics = facts_section(data, OUTPUT, info).metrics
    assert all(type(metric.value) is PublicValue for metric in metrics)
    return {metric.name: metric.value.value for metric in metrics}  # type: ignore[union-attr]


def data_of(**values: Any) -> DataConfig:
    return DataConfig(sensitive="some/rows-v0", unit="patient", **values)


def test_columns_of_spaces_are_told_with_their_ranges() -> None:
    info = info_of(MultiDiscrete([3, 40]), Box(-1.0, 2.5, (2,)))
    found = facts(data_of(units=70, bounds="environment", max_length=9), info)
    assert found["column observation_0"] == "one of 3: 0, 1, 2"
    assert found["column observation_1"].endswith("11, ...")
    assert found["column action_1"] == "number from -1 to 2.5"
    assert (found["unit"], found["units"], found["rows of a unit"]) == ("patient", 70, 9)
    assert found["bounds of the columns"] == "environment"
    assert found["rows"] == 500
    assert "public datasets" not in found


@pytest.mark.parametrize(
    ("values", "units", "bounds"),
    [
        ({"units": {"epsilon": 0.1}}, "counted with noise", "environment"),
        ({"public": ["a-v0", "b-v0"]}, "not declared", "public"),
        ({"bounds": "somewhere.yaml"}, "not declared", "declared"),
        ({"bounds": {"epsilon": 0.1, "search": "s.yaml"}}, "not declared", "found with noise"),
    ],
)
def test_what_was_found_with_noise_is_not_called_declared(
    values: dict[str, Any], units: str, bounds: str
) -> None:
    found = facts(data_of(**values), info_of(Discrete(2), Discrete(2)))
    assert (found["units"], found["bounds of the columns"]) == (units, bounds)
    assert found.get("public datasets") == (
        ", ".join(values["public"]) if "public" in values else None
    )
