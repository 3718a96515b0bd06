import pytest

from benchmarks.maze_references import measure_reference_returns
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.mazes import MAZES
from distributed_privrl.environments.references import EPISODES, SEED, reference_returns

LONG = ("large", "eval-large")
"""Mazes whose episodes take as long as all others' together."""


@pytest.mark.parametrize(
    "maze", [pytest.param(name, marks=[pytest.mark.slow] * (name in LONG)) for name in MAZES]
)
def test_the_listed_returns_are_the_measured_ones(maze: str) -> None:
    measured = measure_reference_returns(maze, episodes=EPISODES, streams=Streams(SEED))
    assert len(measured) == 2
    for environment, returns in measured.items():
        listed = reference_returns(environment)
        assert listed.episodes == returns.episodes == EPISODES
        assert listed.random == pytest.approx(returns.random, rel=0.02)
        assert listed.planner == pytest.approx(returns.planner, rel=0.005)
