"""What a run of the expert level would do and cost, and what is refused before a draw.

Reference: Expert-level DP, theorem 5.6; the split of a budget between the filter and the rounds.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from distributed_privrl.agents.experts import (
    ExpertFacts,
    expert_files,
    policy_units,
)
from distributed_privrl.agents.work import FORWARD, discrete_work
from distributed_privrl.core.config import NoisyBounds, NoisyCount
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import Space, environment_spaces, part_width
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.prefix_plan import FilterPlan, plan_filter
from distributed_privrl.methods.expert.settings import (
    agent_settings,
    levels_of,
    local_settings,
)
from distributed_privrl.models.sizes import dense_weights
from distributed_privrl.privacy.calibration import SUM_SLACK
from distributed_privrl.privacy.units import (
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.encoders import check_bounds_named
from distributed_privrl.stages.round_plan import RoundPlan, make_plan

ADAM_AND_TARGET = "adam_moments_and_target_network_post_process_noisy_steps"
SPLIT_POOLS = "pools_split_by_trajectory_index"
ROUND_OF_EXPERTS = 0.6
"""Of a round of tens of thousands of units: one of hundreds or thousands of experts, beside its
rows; .3 to .6 were measured."""
FEDERATED_ROWS = 8
"""Rows of a gradient that cost as much as one of local training, where each expert has weights of
its own; 5 to 18 were measured."""


@dataclass(frozen=True, kw_only=True)
class RunPlan:
    """Both parts of a run.

    Args:
        filter: of the stable prefixes; None: there is none.
        rounds: of selective DP-SGD; None: noiseless steps alone.
    """

    filter: FilterPlan | None
    rounds: RoundPlan | None


def plan_parts(config: ExpertConfig, units: UnitCount) -> RunPlan:
    """Return the plans of the filter and of the rounds, each for its part of the budget.

    The filter has ``filter.share`` of epsilon and ``filter.delta_share`` of delta, the rounds what
    is left; whoever is alone has all. Both parts add up, in one account (theorem 5.6). The rounds
    are charged at |B| / m: that some steps are noiseless lowers nothing, for they can be seen.

    Raises:
        ConfigError: a part's budget is too small for its draws.
        UnsafeError: delta is not below 1/units.
    """
    privacy, training, data = config.privacy, config.training, config.data
    share = config.filter_share
    filter_plan = None
    epsilon, delta = privacy.epsilon, privacy.delta
    if epsilon is not None and share:
        check_delta_for_units(privacy.delta, units)
        budget = PrivacyBudget(
            epsilon=share * epsilon,
            delta=delta if share == 1 else config.filter.delta_share * delta,
            unit=data.unit,
            relation=Relation(privacy.relation),
        )
        filter_plan = plan_filter(
            config.filter,
            budget,
            units,
            levelled=data.action_levels is not None,
        )
        if share == 1:
            return RunPlan(filter=filter_plan, rounds=None)
        epsilon, delta = epsilon - budget.epsilon, delta - budget.delta  # equation 7
    rounds = make_plan(
        privacy.model_copy(update={"epsilon": epsilon, "delta": delta}),
        training,
        unit=data.unit,
        units=units,
        sum_slack=0.0 if training.local == "federated" else SUM_SLACK,
    )
    if filter_plan is None or filter_plan.budget is None:
        alone = replace(
            rounds,
            trajectories=(training.skip_trajectories, None),
            assumptions=(ADAM_AND_TARGET,),
        )
        return RunPlan(filter=None, rounds=alone)
    budget = filter_plan.budget
    shown = {
        **filter_plan.facts(),
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "draws": filter_plan.rounds,
        "spare_draws": filter_plan.spare,
    }
    rounds = replace(
        rounds,
        trajectories=(_stop(filter_plan), None),
        spent=budget.epsilon,
        assumptions=(ADAM_AND_TARGET, SPLIT_POOLS),
        details={"filter": shown},
        after=f", after {filter_plan.rounds} draws for epsilon {budget.epsilon:g}",
    )
    return RunPlan(filter=filter_plan, rounds=rounds)


def plan_effort(config: ExpertConfig, plan: RunPlan, observations: Space, actions: Space) -> Effort:
    """Return the work of a run: of the filter's draws, of the rounds and of the noiseless steps.

    The experts' own networks are taken to be as large as the agent's, and all trajectories of the
    filter as long as declared.

    Args:
        config: of the run.
        plan: of its parts.
        observations: space of the observations.
        actions: space of the actions, as they were recorded.
    """
    agent, training, levels = config.model, config.training, config.data.action_levels
    settings = agent_settings(agent)
    width = part_width(observations)
    number = part_width(actions) if levels is None else math.prod(map(len, levels))
    of_step = discrete_work(agent.agent, settings, width, number)
    steps = training.noiseless_steps * (plan.filter is not None)
    effort = Effort.of_steps(steps, settings.batch_size, of_step)
    if plan.filter is not None:
        asked = plan.filter.rounds * plan.filter.units.value
        states = config.filter.max_length + 1
        weights = dense_weights((width, *agent.hidden, number))
        effort += Effort(learned_steps=asked * FORWARD, drawn_rows=asked * states * weights)
    if plan.rounds is not None:
        rows = training.expected_batch_size * training.rows_per_expert
        if training.local == "federated":
            rows *= FEDERATED_ROWS * training.federated.epochs
        private = training.rounds * rows * of_step.weights
        effort += Effort(rounds=ROUND_OF_EXPERTS * training.rounds, private_rows=private)
    return effort


def learned_weights(config: ExpertConfig, observations: Space, actions: Space) -> int:
    """Return how many numbers the agent learns; arguments as of `plan_effort`."""
    levels, hidden = config.data.action_levels, agent_settings(config.model).hidden
    number = part_width(actions) if levels is None else math.prod(map(len, levels))
    networks = 2 if config.model.agent == "discrete_bcq" else 1  # values, and who acted
    return networks * dense_weights((part_width(observations), *hidden, number))


def _stop(plan: FilterPlan) -> int:
    """Return the number after the last trajectory that a filter uses."""
    assert plan.trajectories is not None
    return plan.trajectories[1] or 0


def check_config(config: ExpertConfig) -> None:
    """Check all that the configuration alone tells.

    Raises:
        ConfigError: settings do not fit together.
    """
    data = config.data
    agent_settings(config.model)
    local_settings(config.training.federated)
    if data.unit in (TRANSITION, TRAJECTORY):
        raise ConfigError(
            f"data.unit={data.unit}: expert protects whole experts; set data.unit to the column"
            " that names them (recipes experts-*: expert)"
        )
    if config.filter_share == 1 and not config.training.noiseless_steps:
        raise ConfigError(
            "filter.share=1 leaves noiseless steps alone: set training.stable_steps so that there"
            " is one in training.rounds"
        )
    if isinstance(data.units, NoisyCount) or isinstance(data.bounds, NoisyBounds):
        raise ConfigError(
            "the number of experts and the bounds of the columns must be public: give data.units"
            " as a number, and data.bounds as a file, environment or public"
        )
    check_bounds_named(data)


def check_dataset(config: ExpertConfig, store: DatasetStore, plan: RunPlan) -> None:
    """Check the dataset's public facts against what is declared; reads no row.

    Raises:
        ConfigError: it has no trajectories, or the environment cannot be made; or the filter asks
            for what its metadata do not have: experts, their log-probabilities, as many of them and
            with as large probabilities as declared, trajectories no longer than declared, and
            enough of each expert; or its policies are not one for each unit.

    Privacy: messages name what is declared. What the dataset has is exact, and stays there.
    """
    info, environment = store.info(config.data.sensitive), config.data.environment
    if info.kind == "transitions":
        raise ConfigError(
            f"{config.data.sensitive} holds independent transitions: expert needs trajectories"
        )
    if environment is not None:  # it is used after the draws, when an error would come too late
        environment_spaces(environment)[2].close()  # type: ignore[no-untyped-call]
    if plan.filter is None:
        _check_skip(config, info)
        return
    facts, asked, units = ExpertFacts.of(info), config.filter, plan.filter.units.value
    if not facts.log_probabilities:
        raise ConfigError(
            f"{info.id} was stored without its actions' log-probabilities: collect it again, or set"
            " filter.share=0"
        )
    if units != facts.count:
        raise ConfigError(f"data.units={units} is not the number of experts of {info.id}")
    if asked.minimum_probability > facts.minimum_probability:
        raise ConfigError(
            f"filter.minimum_probability={asked.minimum_probability:g} is above that of the"
            f" experts of {info.id}: lower it"
        )
    _check_policies(store, info.id, units)
    if asked.max_length < facts.max_length:
        raise ConfigError(
            f"filter.max_length={asked.max_length} is below that of {info.id}: raise it"
        )
    stop, later = _stop(plan.filter), int(plan.rounds is not None)
    if stop + later > facts.trajectories:
        also = ", and one for the rounds" if later else ""
        after = f" after the first {asked.first_trajectory}" if asked.first_trajectory else ""
        raise ConfigError(
            f"the filter needs {stop - asked.first_trajectory} trajectories of each expert for"
            f" {asked.draws} draws{after}{also}, and {info.id} has fewer: take fewer draws"
        )


def _check_skip(config: ExpertConfig, info: DatasetInfo) -> None:
    skip = config.training.skip_trajectories
    if skip and skip >= ExpertFacts.of(info).trajectories:
        raise ConfigError(
            f"training.skip_trajectories={skip} leaves none of each expert's trajectories in"
            f" {info.id}: lower it"
        )


def _check_policies(store: DatasetStore, dataset: str, units: int) -> None:
    """Check whose the stored networks are, without reading one.

    Raises:
        ConfigError: there are fewer or more than units, or two of one unit.
    """
    named = policy_units(store, dataset)
    if len(named) != units:
        raise ConfigError(f"data.units={units} is not the number of policies beside {dataset}")
    if len(np.unique(named)) != units:
        raise ConfigError(
            f"{dataset} has policies that name the same unit: they would share its trajectories"
        )


def check_networks(config: ExpertConfig, store: DatasetStore) -> None:
    """Check the form of the stored networks, of which the first one is read: it imports torch.

    Raises:
        ConfigError: they have another number of actions than the dataset.
        StorageError: they cannot be read.
    """
    from distributed_privrl.agents.expert_policies import ExpertPolicies

    info, levels = store.info(config.data.sensitive), levels_of(config.data, store)
    actions = part_width(info.action_space if levels is None else levels.space)
    hosted = ExpertPolicies.load(expert_files(store, info.id)[0], stop=1).actions
    if hosted != actions:
        also = "" if levels is None else " with data.action_levels"
        raise ConfigError(
            f"the experts of {info.id} choose among {hosted} actions, its rows among"
            f" {actions}{also}"
        )
