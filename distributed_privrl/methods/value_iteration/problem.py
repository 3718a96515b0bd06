"""The public facts of a finite problem: from its environment, or from a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import tabular_problem
from distributed_privrl.environments.sepsis import icu_sepsis_features
from distributed_privrl.methods.value_iteration.config import (
    ApviConfig,
    LinearModelConfig,
    TabularModelConfig,
    VapviConfig,
)
from distributed_privrl.methods.value_iteration.counts import CountLayout
from distributed_privrl.methods.value_iteration.features import FeatureMap

SEPSIS = "privrl/ICU-Sepsis-v0"
_ARRAYS = {"rewards", "arrival_rewards", "terminal", "clusters"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Facts:
    """Public arrays of a problem; None: not known.

    Args:
        rewards: ``(S, A)`` or ``(H, S, A)``.
        arrival_rewards: ``(S,)``.
        terminal: ``(S,)`` bool.
        clusters: ``(S,)`` int64.
        reward_range: of one step.
    """

    rewards: NDArray[np.float64] | None = None
    arrival_rewards: NDArray[np.float64] | None = None
    terminal: NDArray[np.bool_] | None = None
    clusters: NDArray[np.int64] | None = None
    reward_range: tuple[float, float] | None = None


def sizes(data: DataConfig, store: DatasetStore) -> tuple[int, int]:
    """Return the numbers of states and actions, which the dataset's spaces declare.

    Raises:
        ConfigError: a space is not Discrete, or does not start at 0.
    """
    info = store.info(data.sensitive)
    found = []
    for name, space in (("observation", info.observation_space), ("action", info.action_space)):
        if not isinstance(space, Discrete) or space.start != 0:
            raise ConfigError(
                f"{data.sensitive} has {name} space {space}: value iteration needs"
                " Discrete(n) states and actions, counted from 0"
            )
        found.append(int(space.n))
    return found[0], found[1]


def declared_sizes(config: ApviConfig | VapviConfig) -> tuple[int, int] | None:
    """Return the numbers of states and actions, as far as the configuration tells; opens no data.

    Raises:
        StorageError: a file of public facts cannot be read.
    """
    name = config.data.environment
    problem = tabular_problem(name) if name is not None else None
    if problem is not None:
        return problem.states, problem.actions
    if isinstance(config, VapviConfig):
        features = config.model.features
        known = isinstance(features, Path) and features.is_file()
        return FeatureMap.load(Path(features)).shape if known else None
    path = config.model.facts
    facts = _facts_in(path) if path is not None else Facts()
    if facts.rewards is None:
        return None
    states, actions = facts.rewards.shape[-2:]
    return int(states), int(actions)


def count_layout(config: ApviConfig, facts: Facts, states: int, actions: int) -> CountLayout:
    """Return which cells DP-APVI counts.

    Raises:
        ConfigError: the public facts are of another problem.
    """
    model = config.model
    assert facts.reward_range is not None
    for name, array in (("terminal", facts.terminal), ("clusters", facts.clusters)):
        if array is not None and array.shape != (states,):
            raise ConfigError(
                f"{name} is of {array.size} states, {config.data.sensitive} has {states}"
            )
    return CountLayout(
        states=states,
        actions=actions,
        horizon=model.horizon,
        reward_range=facts.reward_range,
        terminal=facts.terminal,
        clusters=facts.clusters,
        pooled=model.pooled,
        visits=model.visits,
        estimate_reward=model.reward == "estimated",
        max_trajectories_per_unit=model.max_trajectories_per_unit,
        max_rows_per_unit=config.data.max_length,
    )


def tabular_cells(config: ApviConfig, states: int, actions: int) -> int:
    """Return how many numbers a release of DP-APVI has.

    Raises:
        ConfigError: the public facts are of another problem, or miss something.
    """
    facts = tabular_facts(config.model, config.data)
    return count_layout(config, facts, states, actions).dimension


def linear_cells(config: VapviConfig, states: int, actions: int) -> int:
    """Return how many numbers the longest statistic of DP-VAPVI has.

    Raises:
        ConfigError: there are no features, or they are of another problem.
    """
    return feature_map(config.model, config.data, states, actions).gram_size


def tabular_facts(model: TabularModelConfig, data: DataConfig) -> Facts:
    """Return what is known of the problem: ``model.facts`` first, else the environment's.

    Raises:
        ConfigError: a known reward that nobody gives, or no range of rewards.
        StorageError: the file cannot be read.
    """
    facts = _facts_in(model.facts) if model.facts is not None else Facts()
    given = facts.rewards is not None or facts.arrival_rewards is not None
    if model.reward == "estimated" and given:
        raise ConfigError(
            f"{model.facts} holds known rewards, and model.reward=estimated would ignore them: set"
            " model.reward=known, or leave them out of the file"
        )
    problem = tabular_problem(data.environment) if data.environment is not None else None
    if problem is not None:
        known = problem.rewards[0] if len(problem.rewards) == 1 else problem.rewards
        facts = Facts(
            rewards=known if facts.rewards is None else facts.rewards,
            arrival_rewards=problem.arrival_rewards
            if facts.arrival_rewards is None
            else facts.arrival_rewards,
            terminal=problem.terminal if facts.terminal is None else facts.terminal,
            clusters=facts.clusters,
            reward_range=problem.reward_range,
        )
    reward_range = model.reward_range or facts.reward_range
    if reward_range is None:
        raise ConfigError(
            "model.reward_range is missing: give the lowest and highest reward of a step, e.g."
            " [0, 1]"
        )
    if model.reward == "known" and facts.rewards is None:
        raise ConfigError(
            "model.reward=known needs a data.environment with a known model, or model.facts with"
            " rewards: give one, or set it to estimated"
        )
    estimated = model.reward == "estimated"
    return Facts(
        rewards=None if estimated else facts.rewards,
        arrival_rewards=None if estimated else facts.arrival_rewards,
        terminal=facts.terminal,
        clusters=facts.clusters,
        reward_range=reward_range,
    )


def _facts_in(path: Path) -> Facts:
    if not path.is_file():
        raise ConfigError(f"no file at model.facts={path}: give an npz file of public arrays")
    try:
        with np.load(path, allow_pickle=False) as arrays:
            found = {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}; write it with numpy.savez") from error
    if unknown := set(found) - _ARRAYS:
        raise ConfigError(
            f"{path} holds {', '.join(sorted(unknown))}: known are {', '.join(sorted(_ARRAYS))}"
        )
    types = {"terminal": np.bool_, "clusters": np.int64}
    typed: dict[str, Any] = {
        name: np.asarray(array, types.get(name, np.float64)) for name, array in found.items()
    }
    return Facts(**typed)


def feature_map(
    model: LinearModelConfig, data: DataConfig, states: int, actions: int
) -> FeatureMap:
    """Return the public features of DP-VAPVI.

    Raises:
        ConfigError: the environment has none, or they are of another problem.
        StorageError: the file cannot be read.
    """
    features = _features(model, data, states, actions)
    if features.shape != (states, actions):
        raise ConfigError(
            f"model.features are of {features.shape[0]} states and {features.shape[1]} actions,"
            f" {data.sensitive} has {states} and {actions}"
        )
    return features


def _features(model: LinearModelConfig, data: DataConfig, states: int, actions: int) -> FeatureMap:
    if isinstance(model.features, Path):
        return FeatureMap.load(model.features)
    if model.features == "one_hot":
        return FeatureMap(table=np.eye(states), actions=actions)
    if data.environment == SEPSIS:
        return FeatureMap(table=icu_sepsis_features(), actions=actions)
    problem = tabular_problem(data.environment) if data.environment is not None else None
    if problem is None or problem.features is None:
        raise ConfigError(
            f"data.environment={data.environment} has no features: set model.features to one_hot,"
            " or to a file written by FeatureMap.save"
        )
    return FeatureMap(table=problem.features)


def linear_reward_range(model: LinearModelConfig, data: DataConfig) -> tuple[float, float]:
    """Return the declared range of rewards, else the environment's.

    Raises:
        ConfigError: neither is known.
    """
    problem = tabular_problem(data.environment) if data.environment is not None else None
    found = model.reward_range or (problem.reward_range if problem is not None else None)
    if found is None:
        raise ConfigError(
            "model.reward_range is missing: give the lowest and highest reward of a step, e.g."
            " [0, 1]"
        )
    return found
