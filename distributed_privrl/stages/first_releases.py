"""What a run releases once, before its rounds: a count, bounds, start states, a support."""

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.context import RunContext


def release_first(
    name: str,
    data: DataConfig,
    context: RunContext,
    *,
    relation: Relation,
    epsilon: float,
    event: Event,
    query: Mapping[str, Any],
    draw: Callable[[], Any],
) -> Any:
    """Return a noisy answer that is charged, drawn and stored once in the life of a run.

    Args:
        name: of the release; the ledger's entry is ``<run>/<name>``.
        data: the sensitive dataset and its unit.
        context: ledger of the run.
        relation: of the run.
        epsilon: what the release costs, pure.
        event: what it is charged as.
        query: public facts that say what is asked, of JSON values.
        draw: makes the noisy answer, of JSON values; called once, after the charge is on disk.

    Raises:
        UnsafeError: the run does not hold the cost (`charging.held_budget`), it has released the
            answer to another query, or its answer was lost.

    Privacy: unit ``data.unit``, relation as given; what ``draw`` returns must have ``event``. A
    resume reads the stored answer; there is no second draw.
    """
    asked = hashlib.sha256(json.dumps(query, sort_keys=True).encode()).hexdigest()[:24]
    stored, entry = context.ledger.release_once(
        nonce=f"{context.run_id}/{name}",
        dataset=data.sensitive,
        fingerprint=context.fingerprint,
        unit=data.unit,
        relation=relation,
        epsilon=epsilon,
        delta=0.0,
        event=event.model_dump(),
        draw=lambda: {"query": asked, "answer": draw()},
        hold=context.run_id,
    )
    if not isinstance(stored, dict) or stored.get("query") != asked:
        raise UnsafeError(
            f"the ledger's answer for {entry.id} is to another query: public datasets, spaces or"
            " bounds are not those of the run any more, or an earlier version drew it; bring them"
            " back, or start a new run"
        )
    return stored["answer"]


def first_stage(
    name: str, data: DataConfig, event: Event, *, relation: Relation, units: UnitCount
) -> Stage:
    """Return the certificate's stage of `release_first`."""
    return Stage(
        name=name,
        dataset=data.sensitive,
        unit=data.unit,
        relation=relation,
        units=units.value,
        units_source=units.source,
        accountant="pure",
        delta=0.0,
        events=(event,),
    )
