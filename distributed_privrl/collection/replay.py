"""Recipes of replays: episodes of policies from random to expert, which are trained for them.

SAC is trained in a simulator of the environment, and policies are kept along the way. Then they
act by chance, as they did in training, in as many episodes as are asked for.

Reference: PriMORL, appendix D; Fu et al., "D4RL: Datasets for Deep Data-Driven Reinforcement
Learning", section 5, for the mixtures medium, medium-replay and medium-expert.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import gymnasium
import numpy as np
from pydantic import Field

from distributed_privrl.core.config import PositiveInt, StrictModel
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.cartpole import BALANCE, SWINGUP
from distributed_privrl.environments.pendulum import PENDULUM
from distributed_privrl.environments.registered_simulators import simulator_of
from distributed_privrl.environments.simulators import Simulator

if TYPE_CHECKING:
    from distributed_privrl.collection.replay_episodes import Actor

CHUNK_STEPS = 2_000_000
"""Numbers of an episode's steps that are held in memory at a time, rounded up to episodes."""

Mixture = Literal["replay", "medium_replay", "medium", "medium_expert"]
"""Whose episodes: of random actions and of all policies, or of those up to the medium one; of the
medium policy alone; or of the medium policy and of the last one. Equally many each."""

_MEDIUM = 1 / 3
"""What the medium policy earns at least, from random actions (0) to the expert (1)."""


class ReplayOptions(StrictModel):
    """Options of the replay recipes."""

    trajectories: PositiveInt | None = Field(
        default=None, description="number of trajectories, instead of a number of steps"
    )
    training_steps: PositiveInt | None = Field(
        default=None, description="gradient steps of the training (default: the recipe's)"
    )
    snapshots: PositiveInt = Field(
        default=9, description="number of policies kept from the training; the last is the expert"
    )
    reference_episodes: PositiveInt = Field(
        default=100, description="episodes behind each reference return"
    )
    keep_policies: bool = Field(
        default=False, description="leave the trained policies for another recipe of this kind"
    )


@dataclass(frozen=True, kw_only=True)
class ReplayRecipe:
    """A recipe of one environment and mixture; see `distributed_privrl.collection.recipes.Recipe`.

    Args:
        name: name of the recipe.
        problem: Gymnasium id; it has a simulator.
        default_steps: steps where none are asked for.
        training_steps: gradient steps of the training.
        sac: hyper-parameters of `agents.settings.SacConfig`.
        mixture: whose episodes.
    """

    name: str
    problem: str
    default_steps: int
    training_steps: int
    sac: Mapping[str, Any]
    mixture: Mixture = "replay"
    options: type[ReplayOptions] = ReplayOptions
    unit_column: None = None

    def layout(self, options: ReplayOptions) -> Layout:
        """Return ``packed``: trajectories may be many and short."""
        return "packed"

    def environment(self, options: ReplayOptions) -> str:
        """Return the Gymnasium id of the environment."""
        return self.problem

    def total_steps(self, steps: int | None, options: ReplayOptions) -> int:
        """Return how many steps to make, or how many there can be in a number of trajectories.

        Raises:
            ConfigError: both steps and trajectories are given.
            MissingExtraError: the environment's packages are not installed.
        """
        simulator_of(self.problem)
        if options.trajectories is None:
            return self.default_steps if steps is None else steps
        if steps is not None:
            raise ConfigError(
                f"steps={steps} and trajectories={options.trajectories} exclude each other:"
                " give one of them"
            )
        horizon = gymnasium.spec(self.problem).max_episode_steps
        assert horizon is not None
        return options.trajectories * horizon

    def references(self, options: ReplayOptions) -> Mapping[str, Any]:
        """Return nothing: what policies earn is known when they are trained."""
        return {}

    def trajectories(
        self, *, steps: int, options: ReplayOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Refuse: the policies are trained first.

        Raises:
            ConfigError: always; see `trained`.
        """
        raise ConfigError(f"recipe {self.name} has no policies yet: use ReplayRecipe.trained")

    @contextlib.contextmanager
    def trained(
        self,
        options: ReplayOptions,
        *,
        seed: int,
        root: Path,
        progress: Callable[[int, int], None] | None = None,
    ) -> Iterator["TrainedReplay"]:
        """Yield the recipe with its policies, trained now or as far as an earlier call came.

        They lie in a hidden folder of the store until the block ends without an error.

        Args:
            options: how many policies, and for how long they are trained.
            seed: public seed.
            root: folder of the dataset store.
            progress: called with gradient steps taken and in total.

        Raises:
            ConfigError: the schedule cannot be kept, or another process trains these policies.
            StorageError: they cannot be written.
        """
        from distributed_privrl.collection import replay_training as training

        plan = training.SnapshotPlan(
            environment=self.problem,
            sac=self.sac,
            training_steps=options.training_steps or self.training_steps,
            snapshots=options.snapshots,
            seed=seed,
        )
        simulator = simulator_of(self.problem)
        with training.policies_folder(root, plan, keep=options.keep_policies) as folder:
            policies = training.train_snapshots(plan, simulator, folder, progress=progress)
            yield _evaluated(self, simulator, policies, plan.schedule, options, Streams(seed))


@dataclass(kw_only=True)
class TrainedReplay:
    """A replay recipe whose policies are there.

    Args:
        recipe: what was trained for.
        simulator: of its environment.
        actors: whose episodes the mixture has, in turn.
        reference_returns: what random actions and the policies earn.
        horizon: steps of an episode at most.
    """

    recipe: ReplayRecipe
    simulator: Simulator
    actors: "list[Actor]"
    reference_returns: Mapping[str, Any]
    horizon: int
    _returns: list[float] = field(default_factory=list)

    def references(self, options: ReplayOptions) -> Mapping[str, Any]:
        """Return ``reference_returns``: random, expert, snapshots, and the data's once made."""
        behaviour = {"behaviour": float(np.mean(self._returns))} if self._returns else {}
        return {"reference_returns": {**self.reference_returns, **behaviour}}

    def complete(self, folder: Path, options: ReplayOptions, *, public: bool) -> Mapping[str, Any]:
        """Return the references with what the data earn, now that they are made."""
        return self.references(options)

    def trajectories(
        self, *, steps: int, options: ReplayOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Yield episodes in chunks; episode i is of policy i mod their number.

        Args:
            steps: steps in total; the last episode is cut there.
            options: whether whole trajectories are counted instead.
            streams: public randomness of the dataset.
        """
        from distributed_privrl.collection.replay_episodes import play

        own = streams.child(f"collection/{self.recipe.name}")
        done = made = chunk = 0
        while done < steps and made != options.trajectories:
            count = -(-min(CHUNK_STEPS, steps - done) // self.horizon)
            if options.trajectories is not None:
                count = min(-(-CHUNK_STEPS // self.horizon), options.trajectories - made)
            played = play(
                self.simulator,
                self.actors,
                numbers=range(made, made + count),
                horizon=self.horizon,
                streams=own.child(f"chunk/{chunk}"),
            )
            played = _first_steps(played, steps - done)
            earned = np.add.reduceat(played.rewards, played.offsets[:-1], dtype=np.float64)
            self._returns += earned.tolist()
            yield played
            done, made, chunk = done + len(played.rewards), made + len(played), chunk + 1


def _evaluated(
    recipe: ReplayRecipe,
    simulator: Simulator,
    policies: list[Any],
    schedule: tuple[int, ...],
    options: ReplayOptions,
    streams: Streams,
) -> TrainedReplay:
    """Return the trained recipe, with the actors of its mixture."""
    from distributed_privrl.collection import replay_episodes as episodes
    from distributed_privrl.collection.replay_training import action_scale, horizon_of

    horizon = horizon_of(recipe.problem)
    uniform = episodes.uniform_actor(action_scale(recipe.problem))
    random, *returns = episodes.mean_returns(
        simulator,
        [uniform, *map(episodes.mode_actor, policies)],
        episodes=options.reference_episodes,
        horizon=horizon,
        streams=streams.child(f"collection/reference returns/{recipe.problem}"),
    )
    chosen = chosen_policies(recipe.mixture, random, returns)
    actors = [
        uniform if index is None else episodes.sampling_actor(policies[index]) for index in chosen
    ]
    return TrainedReplay(
        recipe=recipe,
        simulator=simulator,
        actors=actors,
        horizon=horizon,
        reference_returns={
            "random": random,
            "expert": returns[-1],
            "episodes": options.reference_episodes,
            "snapshots": dict(zip(map(str, schedule), returns, strict=True)),
        },
    )


def chosen_policies(mixture: Mixture, random: float, returns: list[float]) -> list[int | None]:
    """Return the positions of the policies that a mixture has; None stands for random actions.

    Args:
        mixture: whose episodes.
        random: mean return of random actions.
        returns: mean returns of the policies, in the order of their training; the last is the
            expert. The medium one is the first that earns a third of what the expert does, both
            above random.
    """
    enough = random + _MEDIUM * (returns[-1] - random)
    last = len(returns) - 1
    medium = next((index for index, earned in enumerate(returns) if earned >= enough), last)
    return {
        "replay": [None, *range(last + 1)],
        "medium_replay": [None, *range(medium + 1)],
        "medium": [medium],
        "medium_expert": [medium, last],
    }[mixture]


def _first_steps(played: Trajectories, most: int) -> Trajectories:
    """Return the first ``most`` steps, the last trajectory cut there."""
    if len(played.rewards) <= most:
        return played
    kept = int(np.searchsorted(played.offsets[1:], most)) + 1
    return played.select(range(kept)).cut(most - played.offsets[:kept])


def _robot_recipes(robot: str, problem: str, *, replayed: int) -> tuple[ReplayRecipe, ...]:
    """Return the three mixtures of a robot, as many steps as D4RL's sets have.

    Args:
        robot: first word of the recipes' names.
        problem: Gymnasium id.
        replayed: steps of its medium-replay set.
    """
    sizes: dict[Mixture, int] = {
        "medium_replay": replayed,
        "medium": 1_000_000,
        "medium_expert": 2_000_000,
    }
    return tuple(
        ReplayRecipe(
            name=f"{robot}-{mixture.replace('_', '-')}",
            problem=problem,
            default_steps=steps,
            training_steps=1_000_000,
            sac={"environments": 8},
            mixture=mixture,
        )
        for mixture, steps in sizes.items()
    )


REPLAY_RECIPES = (
    ReplayRecipe(
        name="pendulum-replay",
        problem=PENDULUM,
        default_steps=6_000_000,
        training_steps=10_000,
        sac={"hidden": (64, 64), "learning_rate": 1e-3},
    ),
    ReplayRecipe(
        name="cartpole-balance-replay",
        problem=BALANCE,
        default_steps=30_000_000,
        training_steps=10_000,
        sac={
            "hidden": (128, 128),
            "learning_rate": 1e-3,
            "polyak": 0.02,
            "reward_offset": -1.0,
        },
    ),
    ReplayRecipe(
        name="cartpole-swingup-replay",
        problem=SWINGUP,
        default_steps=30_000_000,
        training_steps=24_000,
        sac={"hidden": (128, 128), "learning_rate": 1e-3, "polyak": 0.02},
    ),
    *_robot_recipes("halfcheetah", "HalfCheetah-v5", replayed=202_000),
    *_robot_recipes("hopper", "Hopper-v5", replayed=402_000),
    *_robot_recipes("walker2d", "Walker2d-v5", replayed=302_000),
)
