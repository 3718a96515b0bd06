"""What a run releases once before its stages: a count, bounds, starts, a support, measures."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from distributed_privrl.core.config import DataConfig
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.accounting import epsilon as epsilon_of
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.events import Event
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.context import RunContext

FoundT = TypeVar("FoundT")
OtherT = TypeVar("OtherT")
WorldT = TypeVar("WorldT")
MEASURES, MEASURES_KEY = "measures", "evaluation.measures"
"""Of measures: name of the stage, and of the ledger entry; key of the configuration."""
_ROUNDING = 1e-9


@dataclass(frozen=True, kw_only=True)
class Question(Generic[FoundT]):
    """What is asked of sensitive rows once, and answered with noise.

    Args:
        event: that the answer is charged as.
        facts: public facts that say what is asked, of JSON values.
        draw: makes the noisy answer, of JSON values; called once, after the charge is on disk.
        found: what the answer says; post-processing, done again by each resume.
    """

    event: Event
    facts: Mapping[str, Any]
    draw: Callable[[], Any]
    found: Callable[[Any], FoundT]

    def then(self, use: Callable[[FoundT], OtherT]) -> "Question[OtherT]":
        """Return the same question, with ``use`` made of what is found."""
        return Question(
            event=self.event,
            facts=self.facts,
            draw=self.draw,
            found=lambda answer: use(self.found(answer)),
        )


@dataclass(frozen=True, kw_only=True)
class FirstRelease(Generic[WorldT]):
    """What a method has released once, before any stage.

    Args:
        name: of the certificate's stage, and of the ledger's entry, ``<run>/<name>``.
        key: of the configuration, that asks for it.
        epsilon: what it costs, pure; from the configuration alone.
        ask: from the world, the number of units and what is around the run to the question whose
            answer makes the next world.
    """

    name: str
    key: str
    epsilon: float
    ask: Callable[[WorldT, UnitCount, RunContext], Question[WorldT]]


def release_first(
    name: str,
    question: Question[FoundT],
    data: DataConfig,
    context: RunContext,
    *,
    relation: Relation,
    epsilon: float,
) -> FoundT:
    """Return what is found from an answer that is charged, drawn and stored once in a run's life.

    Args:
        name: of the release; the ledger's entry is ``<run>/<name>``.
        question: what is asked.
        data: the sensitive dataset and its unit.
        context: ledger of the run.
        relation: of the run.
        epsilon: what the release costs, pure.

    Raises:
        UnsafeError: the event costs more, the run does not hold the cost (`charging.held_budget`),
            it has released the answer to another question, or its answer was lost.

    Privacy: unit ``data.unit``, relation as given; what ``question.draw`` returns must have the
    event that is charged, and that the certificate states. A resume reads the stored answer; there
    is no second draw.
    """
    cost = epsilon_of((question.event,), delta=0.0, relation=relation, accountant="pure")
    if cost > epsilon * (1 + _ROUNDING):
        raise UnsafeError(f"{name} would release epsilon {cost:g} and be charged {epsilon:g}")
    asked = hashlib.sha256(json.dumps(question.facts, sort_keys=True).encode()).hexdigest()[:24]
    charge = Charge(
        entry_id=f"{context.run_id}/{name}",
        kind="release",
        dataset=data.sensitive,
        fingerprint=context.fingerprint,
        unit=data.unit,
        relation=relation,
        epsilon=epsilon,
        delta=0.0,
        event=question.event.model_dump(),
        hold=context.run_id,
    )
    stored, entry = context.ledger.release_once(
        charge, draw=lambda: {"query": asked, "answer": question.draw()}
    )
    if not isinstance(stored, dict) or stored.get("query") != asked:
        raise UnsafeError(
            f"the ledger's answer for {entry.id} is to another query: public datasets, spaces or"
            " bounds are not those of the run any more, or an earlier version drew it; bring them"
            " back, or start a new run"
        )
    return question.found(stored["answer"])


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
