"""How long synthetic trajectories may be."""

import pytest

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.stages.rollouts import RolloutConfig


def data(unit: str, max_length: int | None) -> DataConfig:
    return DataConfig(sensitive="ward/stays-v0", unit=unit, max_length=max_length)


@pytest.mark.parametrize(
    ("unit", "rows", "asked", "longest"),
    [
        ("trajectory", 24, None, 24),
        ("trajectory", 24, 9, 9),
        ("trajectory", None, 9, 9),
        ("patient", 60, 9, 9),
    ],
)
def test_a_rollout_is_as_long_as_asked_or_as_its_unit(
    unit: str, rows: int | None, asked: int | None, longest: int
) -> None:
    assert RolloutConfig(max_length=asked).longest(data(unit, rows)) == longest


def test_rows_of_a_unit_of_several_trajectories_say_nothing_of_one() -> None:
    with pytest.raises(ConfigError, match=r"a synthetic trajectory at most$"):
        RolloutConfig().longest(data("patient", 60))
    with pytest.raises(ConfigError, match=r"at most, or data\.max_length$"):
        RolloutConfig().longest(data("trajectory", None))
