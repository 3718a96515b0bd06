"""The cells agree with the means that the paper's text gives, and with one another."""

from statistics import mean

import pytest

from distributed_privrl.environments.mazes import MAZES
from distributed_privrl.evaluation.published import EPSILONS, PublishedCell, published_cell
from distributed_privrl.evaluation.trainer import TRAINERS
from distributed_privrl.experiments.registry import METHODS

MAZE_NAMES = ("umaze", "medium", "large")
AGENTS = ("edac", "iql", "td3bc")


def cells(method: str, epsilon: float, environments: tuple[str, ...]) -> list[PublishedCell]:
    found = [
        published_cell(method, environment, agent, epsilon)
        for environment in environments
        for agent in AGENTS
    ]
    assert None not in found
    return [cell for cell in found if cell is not None]


@pytest.mark.parametrize(
    ("method", "one", "ten"),
    [("privorl_n", 51.9, 69.3), ("privorl_j", 30.2, 45.8), ("privorl_j_unet", 13.2, 23.0)],
)
def test_the_means_over_mazes_are_those_of_the_text(method: str, one: float, ten: float) -> None:
    """PrivORL, section IX-A: averages over three mazes and three agents."""
    mazes = tuple(f"privrl/Maze2D-{name}-v0" for name in MAZE_NAMES)
    for epsilon, stated in zip(EPSILONS, (one, ten), strict=True):
        found = cells(method, epsilon, mazes)
        assert mean(cell.normalised_return for cell in found) == pytest.approx(stated, abs=0.051)
        assert mean(cell.real_return for cell in found) == pytest.approx(78.6, abs=0.051)


def test_halfcheetah_is_that_of_the_text() -> None:
    found = cells("privorl_n", 10, ("HalfCheetah-v5",))
    assert mean(cell.normalised_return for cell in found) == pytest.approx(43.6, abs=0.051)
    assert mean(cell.real_return for cell in found) == pytest.approx(52.5, abs=0.051)
    assert {cell.dataset for cell in found} == {"halfcheetah-medium-replay"}


@pytest.mark.parametrize(("epsilon", "listed"), [(0.01, 1), (1, 1), (5.4, 1), (5.6, 10), (99, 10)])
def test_the_nearest_epsilon_is_taken_and_said(epsilon: float, listed: float) -> None:
    cell = published_cell("privorl_n", "privrl/Maze2D-umaze-v0", "iql", epsilon)
    assert cell is not None
    assert cell.epsilon == listed
    assert f"at epsilon {listed}:" in str(cell)
    assert str(cell).endswith("(PrivORL, table I)")


@pytest.mark.parametrize(
    ("method", "environment", "agent", "epsilon"),
    [
        ("privorl_n", "privrl/Maze2D-umaze-dense-v0", "iql", 10),
        ("privorl_n", "privrl/Maze2D-eval-umaze-v0", "iql", 10),
        ("privorl_n", "privrl/Maze2D-umaze-v0", "bc", 10),
        ("privorl_n", "privrl/Maze2D-umaze-v0", "iql", None),
        ("privorl_n", None, "iql", 10),
        ("privorl_j", "HalfCheetah-v5", "iql", 10),
        ("privorl_n", "FrankaKitchen-v1", "iql", 10),
        ("apvi", "privrl/Maze2D-umaze-v0", "iql", 10),
        (None, "privrl/Maze2D-umaze-v0", "iql", 10),
    ],
)
def test_no_other_cell_has_one(
    method: object, environment: str | None, agent: str, epsilon: float | None
) -> None:
    assert published_cell(method, environment, agent, epsilon) is None


def test_names_are_those_of_the_package() -> None:
    assert set(AGENTS) <= set(TRAINERS)
    assert set(MAZE_NAMES) <= set(MAZES)
    assert "privorl_n" in METHODS
