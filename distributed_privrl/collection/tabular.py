"""The recipes of finite problems: the behaviour of a registered MDP, from its start on."""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import Field

from distributed_privrl.collection.sampling import sample_trajectories
from distributed_privrl.core.config import PositiveInt, StrictModel
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.problems import tabular_problem
from distributed_privrl.environments.tabular import (
    TabularMdp,
    optimal_policy,
    policy_value,
    uniform_policy,
    with_horizon,
)


class TabularOptions(StrictModel):
    """Options of every recipe of a finite problem."""

    horizon: PositiveInt | None = Field(
        default=None, description="steps of a trajectory at most (default: the environment's)"
    )

    @property
    @abstractmethod
    def count(self) -> int:
        """The number of trajectories."""


class TrajectoryOptions(TabularOptions):
    """Options of the recipes that count trajectories."""

    trajectories: PositiveInt = Field(default=1000, description="number of trajectories")

    @property
    def count(self) -> int:
        """The number of trajectories."""
        return self.trajectories


class LinearOptions(TrajectoryOptions):
    """Options of the linear MDP."""

    instance: Literal["a", "b"] = Field(default="a", description="which of the two problems")


class SepsisOptions(TabularOptions):
    """Options of ICU-Sepsis."""

    patients: PositiveInt = Field(default=10_000, description="number of patients")

    @property
    def count(self) -> int:
        """The number of trajectories."""
        return self.patients


@dataclass(frozen=True, kw_only=True)
class TabularRecipe:
    """A recipe of finite problems; see `distributed_privrl.collection.recipes.Recipe`.

    Args:
        name: name of the recipe.
        problem: Gymnasium id, in which ``{instance}`` stands for that option.
        options: the options that it takes.
        unit_column: what a trajectory's number is called, if it is a person.
    """

    name: str
    problem: str
    options: type[TabularOptions] = TrajectoryOptions
    unit_column: str | None = None

    def layout(self, options: TabularOptions) -> Layout:
        """Return ``packed``: trajectories may be many and short."""
        return "packed"

    def environment(self, options: TabularOptions) -> str:
        """Return the Gymnasium id of the environment."""
        return self.problem.format(**options.model_dump())

    def total_steps(self, steps: int | None, options: TabularOptions) -> int:
        """Return how many steps there can be: trajectories that end early have fewer.

        Raises:
            ConfigError: a number of steps is asked for, or a horizon that the problem has not.
            MissingExtraError: the environment's packages are not installed.
        """
        if steps is not None:
            counted = "patients" if "patients" in self.options.model_fields else "trajectories"
            raise ConfigError(
                f"steps={steps} cannot be asked of {self.name}, whose trajectories end when they"
                f" end: give -o {counted}=N"
            )
        return options.count * self._mdp(options).horizon

    def trajectories(
        self, *, steps: int, options: TabularOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Return an iterator over the trajectories, in chunks.

        Args:
            steps: what `total_steps` returned.
            options: number of trajectories, and their horizon.
            streams: public randomness of the dataset.

        Raises:
            MissingExtraError: the environment's packages are not installed.
        """
        return sample_trajectories(
            self._mdp(options),
            trajectories=options.count,
            streams=streams.child(f"collection/{self.environment(options)}"),
        )

    def references(self, options: TabularOptions) -> Mapping[str, Any]:
        """Return ``reference_values``: the exact values of three policies, and their horizon."""
        mdp = self._mdp(options)
        return {
            "reference_values": {
                "uniform": policy_value(mdp, uniform_policy(mdp)),
                "behaviour": policy_value(mdp, mdp.behaviour),
                "optimal": float(mdp.initial @ optimal_policy(mdp)[1][0]),
                "horizon": mdp.horizon,
            }
        }

    def _mdp(self, options: TabularOptions) -> TabularMdp:
        mdp = tabular_problem(self.environment(options))
        assert mdp is not None
        return with_horizon(mdp, options.horizon)


TABULAR_RECIPES = (
    TabularRecipe(
        name="icu-sepsis",
        problem="privrl/ICU-Sepsis-v0",
        options=SepsisOptions,
        unit_column="patient_id",
    ),
    TabularRecipe(
        name="linear-mdp", problem="privrl/LinearMDP-{instance}-v0", options=LinearOptions
    ),
    TabularRecipe(name="gridworld", problem="privrl/Gridworld-v0"),
    TabularRecipe(name="random-mdp", problem="privrl/RandomMDP-v0"),
)
