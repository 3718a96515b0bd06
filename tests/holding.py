"""What a run holds, where a test asks for a release without the run around it."""

from distributed_privrl.privacy.ledger.records import Holding
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.context import RunContext


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
