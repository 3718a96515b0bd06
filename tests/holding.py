"""What a run holds, where a test asks for a release without the run around it."""

from typing import TypeVar

from distributed_privrl.core.config import DataConfig
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger.records import Holding
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import Question, first_stage, release_first

FoundT = TypeVar("FoundT")


def hold(
    context: RunContext,
    dataset: str,
    unit: str,
    epsilon: float,
    *,
    delta: float = 0.0,
    relation: Relation = Relation.REPLACE_WITH_NULL,
    units: int | None = None,
) -> None:
    """Hold so much for the run of a context; may be repeated."""
    context.ledger.open_hold(
        Holding(
            run_id=context.run_id,
            dataset=dataset,
            fingerprint=context.fingerprint,
            unit=unit,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            units=units,
        )
    )


def answered(
    name: str,
    question: Question[FoundT],
    data: DataConfig,
    context: RunContext,
    *,
    relation: Relation,
    epsilon: float,
    units: UnitCount,
) -> tuple[FoundT, Stage]:
    """Hold what a first release costs, and release it as the engine does."""
    hold(context, data.sensitive, data.unit, epsilon, relation=relation)
    found = release_first(name, question, data, context, relation=relation, epsilon=epsilon)
    return found, first_stage(name, data, question.event, relation=relation, units=units)
