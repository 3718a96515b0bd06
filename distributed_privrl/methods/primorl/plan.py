"""What a run of PriMORL would do and cost, and what is refused before anything is drawn."""

import math

from distributed_privrl.agents.work import sac_work
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.spaces import Space, environment_spaces, part_width, same_form
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRANSITION
from distributed_privrl.methods.primorl.config import (
    LONGEST_ROLLOUT,
    MopoConfig,
    NoisyStarts,
    PrimorlConfig,
)
from distributed_privrl.methods.primorl.mopo_plan import check_mopo, plan_minibatches
from distributed_privrl.methods.primorl.settings import (
    MODEL_ROLLOUTS,
    local_settings,
    policy_settings,
)
from distributed_privrl.models.sizes import dense_weights
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.encoders import check_bounds_named
from distributed_privrl.stages.plan import check_relation
from distributed_privrl.stages.round_plan import RoundPlan, make_plan
from distributed_privrl.stages.round_verdict import with_verdict


def plan_rounds(
    config: PrimorlConfig, units: UnitCount, weights: int | None, *, spent: float
) -> RoundPlan:
    """Return the plan of the rounds, for what is left of epsilon; opens no data.

    Args:
        config: of the run.
        units: how many there are.
        weights: of the ensemble; None: public facts do not tell.
        spent: epsilon of what is released before the rounds.

    Raises:
        ConfigError: nothing is left, or the units are fewer than a batch.
        UnsafeError: delta is not below 1/units.
    """
    if isinstance(config, MopoConfig):
        return plan_minibatches(config)
    plan = make_plan(
        config.privacy,
        config.training,
        unit=config.data.unit,
        units=units,
        spent=spent,
        sum_slack=0.0,
    )
    smaller = "a smaller ensemble (model.hidden, model.members)"
    return with_verdict(plan, weights, taught=False, smaller=smaller)


def plan_effort(config: PrimorlConfig, observations: Space, actions: Space) -> Effort:
    """Return the work of a run: its ensemble's, and that of a policy in it.

    Trajectories are taken to be as long as they may be, 200 steps where nothing says so; restarts
    go on side by side, as many as there are workers. Episodes of the simulator count for nothing:
    they step together.

    Args:
        config: of the run.
        observations: space of the observations.
        actions: space of the actions.
    """
    training, local, policy = config.training, config.training.local, config.training.policy
    weights = ensemble_weights(config, observations, actions)
    rows = training.rounds * training.expected_batch_size
    if isinstance(config, MopoConfig):
        ensemble = Effort(learned_steps=training.rounds, learned_rows=rows * weights)
    else:
        of_unit = local.epochs * (local.steps or config.data.max_length or LONGEST_ROLLOUT)
        ensemble = Effort(rounds=training.rounds, private_rows=rows * of_unit * weights)
    sac = policy_settings(policy, config.rollout_horizon)
    turns = math.ceil(policy.restarts / config.runtime.least_workers)
    steps = turns * policy.steps
    acted = steps * policy.action_repeat / policy.gradient_steps
    judged = turns * math.ceil(policy.steps / config.evaluation.every) * config.rollout_horizon
    rollouts = Effort(
        learned_steps=acted + judged,  # a call of the model is as much as a step of a network
        drawn_rows=(acted * policy.rollouts + judged * MODEL_ROLLOUTS) * weights,
    )
    of_step = sac_work(sac, part_width(observations), part_width(actions))
    return ensemble + Effort.of_steps(steps, policy.batch_size, of_step) + rollouts


def ensemble_weights(config: PrimorlConfig, observations: Space, actions: Space) -> int:
    """Return how many numbers the ensemble of a run learns.

    Args:
        config: of the run.
        observations: space of the observations.
        actions: space of the actions.
    """
    width = part_width(observations)
    widths = (width + part_width(actions), *config.model.hidden, 2 * (width + 1))
    return config.model.members * dense_weights(widths)


def check_config(config: PrimorlConfig) -> None:
    """Check all that the configuration alone tells, before anything is counted or found.

    Raises:
        ConfigError: settings do not fit together.
        UnsafeError: the relation is ``replace_one``.
    """
    training, data = config.training, config.data
    if isinstance(config, MopoConfig):
        check_mopo(config)
    local_settings(training.local)
    policy_settings(training.policy, config.rollout_horizon)
    if data.unit == TRANSITION:
        raise ConfigError(
            "data.unit=transition: primorl protects whole trajectories; set data.unit to"
            " trajectory or to the unit's column"
        )
    if data.environment is None and config.privacy.epsilon is None:
        raise ConfigError(
            "without privacy rollouts of the model begin where data.environment resets to: name a"
            " Gymnasium id (a start distribution found with noise needs privacy.epsilon)"
        )
    starts = training.policy.starts
    if not isinstance(starts, NoisyStarts) and data.environment is None:
        raise ConfigError(
            "rollouts of the model begin where data.environment resets to: name a Gymnasium id, or"
            " set training.policy.starts to {epsilon: E} to find a start distribution with noise"
        )
    _check_privacy(config)
    check_bounds_named(data)


def _check_privacy(config: PrimorlConfig) -> None:
    training = config.training
    check_relation(config.privacy)
    if config.privacy.epsilon is None:
        return
    if not training.clip:
        raise ConfigError(
            "training.clip=false bounds no unit's change: it is for runs without privacy"
            " (privacy.epsilon null)"
        )
    if config.data.max_length is None and training.local.steps is None:
        raise ConfigError(
            "data.max_length is not set: one long record would decide what a round costs all"
            " others, and whether it ends; set it to the longest that a unit can be (the"
            " horizon of data.environment), or training.local.steps to draw some steps a round"
        )


def check_dataset(config: PrimorlConfig, store: DatasetStore) -> None:
    """Check that the dataset has trajectories, and the spaces of the simulator.

    Raises:
        ConfigError: it has not, or the simulator has no time limit.
    """
    info, environment = store.info(config.data.sensitive), config.data.environment
    if info.kind == "transitions":
        raise ConfigError(
            f"{config.data.sensitive} holds independent transitions: primorl needs whole"
            " trajectories"
        )
    if environment is None:
        return
    observations, actions, made = environment_spaces(environment)
    made.close()  # type: ignore[no-untyped-call]
    for name, mine, theirs in (
        ("observation", info.observation_space, observations),
        ("action", info.action_space, actions),
    ):
        if not same_form(mine, theirs):
            raise ConfigError(
                f"data.environment={environment} has {name}s {theirs}, {config.data.sensitive} has"
                f" {mine}"
            )
    if config.evaluation.episodes and (made.spec is None or made.spec.max_episode_steps is None):
        raise ConfigError(
            f"data.environment={environment} has no time limit: register one, or set"
            " evaluation.episodes to 0"
        )
