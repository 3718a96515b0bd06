"""Small datasets of Gymnasium's classic control: a scripted controller mixed with random actions.

They make the agents' tests and first steps cheap: a good policy is in the data, hidden among bad
actions, so that imitation alone does not find it.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from distributed_privrl.core.config import StrictModel
from distributed_privrl.core.random import Streams
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.trajectories import Trajectories, offsets_of

CHUNK_STEPS = 50_000
_RESET_SEEDS = 2**31


class MixedOptions(StrictModel):
    """Options of the mixed recipes."""

    random: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.5, description="share of the episodes whose actions are all random"
    )
    slips: Annotated[float, Field(ge=0, le=1)] = Field(
        default=0.2, description="share of random actions in the controller's episodes"
    )


def balance(observation: NDArray[Any]) -> int:
    """Return CartPole's action against the side to which the pole falls and the cart drifts."""
    position, velocity, angle, rotation = observation.tolist()
    return int(angle + 0.5 * rotation + 0.05 * position + 0.1 * velocity > 0)


def swing_up(observation: NDArray[Any]) -> NDArray[np.float32]:
    """Return Pendulum's torque: energy is pumped in, then the pole is held upright."""
    cosine, sine, rotation = observation.tolist()
    angle = math.atan2(sine, cosine)
    if abs(angle) < 0.5:
        torque = -(10.0 * angle + 2.0 * rotation)
    else:
        missing = 10.0 * (1 - cosine) / 2 * 1.5 - rotation**2 / 6
        torque = math.copysign(2.0, rotation * missing)
    return np.array([min(max(torque, -2.0), 2.0)], np.float32)


@dataclass(frozen=True, kw_only=True)
class GymRecipe:
    """A recipe of one environment; see `distributed_privrl.collection.recipes.Recipe`.

    Args:
        name: name of the recipe.
        problem: Gymnasium id.
        controller: observation to action.
        default_steps: steps where none are asked for.
    """

    name: str
    problem: str
    controller: Callable[[NDArray[Any]], Any]
    default_steps: int = 50_000
    options: type[MixedOptions] = MixedOptions
    unit_column: None = None

    def layout(self, options: MixedOptions) -> Layout:
        """Return ``packed``: trajectories may be many and short."""
        return "packed"

    def environment(self, options: MixedOptions) -> str:
        """Return the Gymnasium id of the environment."""
        return self.problem

    def total_steps(self, steps: int | None, options: MixedOptions) -> int:
        """Return how many steps to make."""
        return self.default_steps if steps is None else steps

    def references(self, options: MixedOptions) -> Mapping[str, Any]:
        """Return nothing: returns in these environments are reported raw."""
        return {}

    def trajectories(
        self, *, steps: int, options: MixedOptions, streams: Streams
    ) -> Iterator[Trajectories]:
        """Yield episodes in chunks; episode i depends on the seed and i alone.

        Args:
            steps: steps in total; the last episode is cut there.
            options: how much is random.
            streams: public randomness of the dataset.
        """
        environment = gymnasium.make(self.problem)
        own = streams.child(f"collection/{self.name}")
        done, number, held, episodes = 0, 0, 0, []
        while done < steps:
            episode = self._episode(environment, own.child(str(number)), options, steps - done)
            episodes.append(episode)
            number, held, done = number + 1, held + len(episode[1]), done + len(episode[1])
            if held >= CHUNK_STEPS or done >= steps:
                yield _as_trajectories(episodes, first=number - len(episodes))
                held, episodes = 0, []
        environment.close()  # type: ignore[no-untyped-call]

    def _episode(
        self,
        environment: gymnasium.Env[Any, Any],
        streams: Streams,
        options: MixedOptions,
        most: int,
    ) -> tuple[list[Any], list[Any], list[float], bool]:
        """Return observations, actions, rewards, and whether the episode terminated."""
        generator = streams.numpy("actions")
        environment.action_space.seed(streams.integer("random actions") % _RESET_SEEDS)
        slips = 1.0 if generator.random() < options.random else options.slips
        observation, _ = environment.reset(seed=streams.integer("start") % _RESET_SEEDS)
        observations = [observation]
        actions: list[Any] = []
        rewards: list[float] = []
        terminated = truncated = False
        while not (terminated or truncated) and len(actions) < most:
            if generator.random() < slips:
                action = environment.action_space.sample()
            else:
                action = self.controller(observation)
            observation, reward, terminated, truncated, _ = environment.step(action)
            observations.append(observation)
            actions.append(action)
            rewards.append(float(reward))
        return observations, actions, rewards, terminated


def _as_trajectories(
    episodes: list[tuple[list[Any], list[Any], list[float], bool]], *, first: int
) -> Trajectories:
    offsets = offsets_of([len(actions) for _, actions, _, _ in episodes])
    terminated = np.zeros(offsets[-1], dtype=bool)
    terminated[offsets[1:] - 1] = [ended for *_, ended in episodes]
    truncated = np.zeros(offsets[-1], dtype=bool)
    truncated[offsets[1:] - 1] = [not ended for *_, ended in episodes]
    return Trajectories(
        observations=np.concatenate([np.stack(parts) for parts, *_ in episodes]),
        actions=np.concatenate([np.stack(actions) for _, actions, _, _ in episodes]),
        rewards=np.concatenate([rewards for _, _, rewards, _ in episodes]).astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        offsets=offsets,
        unit_ids=np.arange(first, first + len(episodes), dtype=np.uint64),
    )


GYM_RECIPES = (
    GymRecipe(name="cartpole-mixed", problem="CartPole-v1", controller=balance),
    GymRecipe(name="pendulum-mixed", problem="Pendulum-v1", controller=swing_up),
)
