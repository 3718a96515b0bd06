"""Charging a run's private rounds and its noisy count; the stages of its certificate."""

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from distributed_privrl.core.config import DataConfig, NoisyCount, PrivacyConfig
from distributed_privrl.core.errors import ConfigError, StorageError, UnsafeError
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger.records import Charge, Holding
from distributed_privrl.privacy.mechanisms import noisy_count
from distributed_privrl.privacy.units import (
    TRANSITION,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import Question, first_stage, release_first
from distributed_privrl.stages.plan import Plan

COUNT = "count"
_COUNT_FAILURE = 1e-3
_SETTLE_ATTEMPTS = 3


def declared_units(data: DataConfig) -> UnitCount:
    """Return the number of units as the configuration declares it.

    Raises:
        ConfigError: it is not declared, or is to be counted privately.
    """
    if isinstance(data.units, NoisyCount):
        raise ConfigError(
            "data.units is to be counted with noise, so nothing is known before the run:"
            " plan with a guess, e.g. -o data.units=100000"
        )
    if data.units is None:
        raise ConfigError(
            "data.units is not declared: the number of units is private unless it is public;"
            " give it, or {epsilon: 0.1} to count it with noise"
        )
    return UnitCount(value=data.units, source="declared")


@contextlib.contextmanager
def held_budget(
    data: DataConfig,
    privacy: PrivacyConfig,
    context: RunContext,
    charges: Sequence[Charge] = (),
) -> Iterator[None]:
    """Hold all that a run may cost, before anything is drawn and until its rounds are opened.

    First releases and rounds are charged to the hold; `open_charges` frees what they leave. A run
    that is refused before its first release frees all of it; one that dies keeps it for its resume.

    Args:
        data: the sensitive dataset, its unit, and how many there are if that is declared.
        privacy: what the run may cost in all; without epsilon nothing is held.
        context: ledger of the run.
        charges: that are known already: those that no budget could pay for are refused first.

    Raises:
        BudgetError: no budget is set, less is left than ``privacy`` asks for, or the account's
            deltas would add up to 1/units, where those are declared.
        UnsafeError: unit, relation or data do not fit the account, delta is not below 1/units, or
            trajectories are not free.
    """
    if privacy.epsilon is None:
        yield
        return
    if isinstance(data.units, int):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the plan warns
            check_delta_for_units(privacy.delta, declared_units(data))
    asked = holding_of(data, privacy, run_id=context.run_id, fingerprint=context.fingerprint)
    context.ledger.open_hold(asked, charges)
    try:
        yield
    except BaseException:
        with contextlib.suppress(StorageError):  # what the run was refused for says more
            context.ledger.free_hold(context.run_id)
        raise


def holding_of(
    data: DataConfig, privacy: PrivacyConfig, *, run_id: str, fingerprint: str
) -> Holding:
    """Return what a private run holds: all that it may cost.

    Args:
        data: the sensitive dataset, its unit, and how many there are if that is declared.
        privacy: what the run may cost in all; with epsilon.
        run_id: of the run.
        fingerprint: of the sensitive dataset.
    """
    assert privacy.epsilon is not None
    return Holding(
        run_id=run_id,
        dataset=data.sensitive,
        fingerprint=fingerprint,
        unit=data.unit,
        relation=Relation(privacy.relation),
        epsilon=privacy.epsilon,
        delta=privacy.delta,
        units=None if isinstance(data.units, NoisyCount) else data.units,
    )


def count_units(
    data: DataConfig, context: RunContext, *, relation: Relation
) -> tuple[UnitCount, Stage | None]:
    """Return the number of units: as declared, or counted with discrete Laplace noise and charged.

    Args:
        data: ``units`` says which.
        context: ledger, store and noise of the run.
        relation: of the run.

    Raises:
        ConfigError: ``data.units`` is neither declared nor to be counted, or the count is too
            noisy to plan with.

    Privacy: unit ``data.unit``, relation as given; a count has sensitivity 1; event
    ``discrete_laplace``, charged under the nonce ``<run>/count``, so that a resume draws no second.
    """
    if not isinstance(data.units, NoisyCount):
        return declared_units(data), None
    cost = data.units.epsilon
    question = _count_question(data, context, cost)
    count = release_first(COUNT, question, data, context, relation=relation, epsilon=cost)
    return count, first_stage(COUNT, data, question.event, relation=relation, units=count)


def _count_question(data: DataConfig, context: RunContext, cost: float) -> Question[UnitCount]:
    release = noisy_count(epsilon=cost)

    def draw() -> int:
        exact = np.array([_exact_count(data, context)], dtype=np.int64)
        return max(1, int(release.release(exact, context.noise_source())[0]))

    return Question(
        event=release.event,
        facts={},
        draw=draw,
        found=lambda answer: _with_margin(int(answer), cost),
    )


def _with_margin(answer: int, epsilon: float) -> UnitCount:
    """Return the noisy count; the true one is above value + margin with probability < 1e-3.

    Raises:
        ConfigError: the margin is above half the count.
    """
    margin = math.ceil(math.log(1 / _COUNT_FAILURE) / epsilon)
    if margin > answer / 2:
        raise ConfigError(
            f"the count {answer} may be {margin} too low, too noisy to plan with: raise"
            " data.units.epsilon"
        )
    return UnitCount(value=answer, source="dp", margin=margin)


def _exact_count(data: DataConfig, context: RunContext) -> int:
    """Return the number of units. Private: for `noisy_count` alone."""
    chunks = context.store.iter_transitions(data.sensitive, unit=data.unit)
    if data.unit == TRANSITION:
        return sum(len(chunk) for chunk in chunks)
    seen: set[int] = set()
    for chunk in chunks:
        seen.update(np.unique(chunk.unit_ids).tolist())
    return len(seen)


def open_charges(context: RunContext, charges: Sequence[Charge]) -> None:
    """Charge planned and spare rounds to what the run holds, all stages' or none; free the rest.

    Raises:
        BudgetError: the account's deltas would add up to 1/units.
        UnsafeError: the run does not hold so much (`held_budget`), the budget is for another unit
            or relation, or trajectories are not free.
    """
    context.ledger.open_together(charges, closes=context.run_id)


def charges_of(
    data: DataConfig,
    context: RunContext,
    parts: Sequence[tuple[RunContext, Plan]],
    *,
    policies: str | None = None,
) -> list[Charge]:
    """Return what the rounds of a run's parts cost, none without privacy.

    Args:
        data: says which dataset.
        context: of the run that holds it.
        parts: context and plan of each, with one ledger.
        policies: digest of the policies that the run hosts.
    """
    return [
        Charge(
            entry_id=part.run_id,
            kind="rounds",
            dataset=data.sensitive,
            fingerprint=part.fingerprint,
            unit=plan.budget.unit,
            relation=plan.budget.relation,
            epsilon=plan.budget.epsilon,
            delta=plan.budget.delta,
            max_rounds=plan.max_rounds,
            event=plan.charged(policies=policies),
            units=plan.units.value,
            hold=context.run_id,
        )
        for part, plan in parts
        if plan.budget is not None
    ]


def settle_charge(
    name: str, data: DataConfig, context: RunContext, plan: Plan
) -> tuple[Stage, int]:
    """Lower the hold to what was reserved; return the certificate's stage and the unused rounds.

    The number of reserved rounds was fixed in advance, but for blocks lost to crashes.

    Raises:
        ConfigError: the run was never charged.
        UnsafeError: rounds are left undone (what stopped them may have been what they showed), some
            are still being reserved, or the cost is above the hold.
    """
    if plan.budget is None:
        raise ConfigError(f"run {context.run_id} was never charged: nothing to settle")
    reserved_rounds = _settle_reserved(context, plan, plan.budget.delta)
    stage = Stage(
        name=name,
        dataset=data.sensitive,
        unit=plan.budget.unit,
        relation=plan.budget.relation,
        units=plan.units.value,
        units_source=plan.units.source,
        accountant=plan.accountant,
        delta=plan.budget.delta,
        clip_norm=plan.clip_norm,
        assumptions=plan.assumptions,
        events=plan.events(reserved_rounds),
    )
    return stage, plan.max_rounds - reserved_rounds


def _settle_reserved(context: RunContext, plan: Plan, delta: float) -> int:
    """Settle at the cost of the reserved rounds, priced again if more were reserved meanwhile."""
    reserved_rounds = _reserved_rounds(context)
    for _ in range(_SETTLE_ATTEMPTS):
        if reserved_rounds < plan.rounds and reserved_rounds < plan.max_rounds:
            raise UnsafeError(
                f"{context.run_id} stopped after {reserved_rounds} of {plan.rounds} rounds: a stage"
                " does all of them, whatever they show, and its charge stays whole until it has"
            )
        cost = plan.epsilon_of_rounds(reserved_rounds, certified=True)
        try:
            context.ledger.settle(
                context.run_id, reserved_rounds=reserved_rounds, epsilon=cost, delta=delta
            )
        except UnsafeError:
            priced, reserved_rounds = reserved_rounds, _reserved_rounds(context)
            if reserved_rounds == priced:
                raise
        else:
            return reserved_rounds
    raise UnsafeError(f"run {context.run_id} still reserves rounds: settle it when it has stopped")


def _reserved_rounds(context: RunContext) -> int:
    entry = context.ledger.reserved(context.run_id)
    if entry is None:
        raise ConfigError(f"run {context.run_id} was never charged: nothing to settle")
    return entry.reserved_rounds
