"""What a run holds, where a test asks for a release without the run around it."""

from pathlib import Path
from typing import Self, TypeVar

from gymnasium.spaces import Space

from distributed_privrl.core.config import DataConfig
from distributed_privrl.data.metadata import Layout
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger.records import Holding
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.first_releases import Question, first_stage, release_first
from tests.worlds.ledgers import DATASET, NULL, account, set_budget
from tests.worlds.world import World

FoundT = TypeVar("FoundT")


def hold(
    context: RunContext,
    dataset: str,
    unit: str,
    epsilon: float,
    *,
    delta: float = 0.0,
    relation: Relation = NULL,
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


class Asked(World):
    """A dataset with an account, of which a run asks something before its rounds.

    The account goes by a made-up fingerprint: setting its budget reads no row.

    Args:
        folder: that holds all of it.
        rows: of the dataset.
        spaces: of its observations and actions.
        unit: name of the column of units, if there is one.
        layout: of trajectories.
    """

    dataset = DATASET

    def __init__(
        self,
        folder: Path,
        rows: Transitions | Trajectories,
        spaces: tuple[Space, Space],
        unit: str | None = None,
        layout: Layout = "packed",
    ) -> None:
        super().__init__(folder)
        about = {"observation_space": spaces[0], "action_space": spaces[1], "unit_column": unit}
        if isinstance(rows, Transitions):
            self.store.write_transitions(self.dataset, rows, layout="transitions", **about)
        else:
            self.store.write_trajectories(self.dataset, rows, layout=layout, **about)
        self.unit = unit or ("transition" if isinstance(rows, Transitions) else "trajectory")

    def budget(self, epsilon: float, relation: Relation = NULL, delta: float = 1e-5) -> Self:
        about = {"dataset": self.dataset, "unit": self.unit, "relation": relation}
        set_budget(self.ledger, epsilon=epsilon, delta=delta, **about)
        return self

    @property
    def spent(self) -> float:
        return account(self.ledger).spent_epsilon
