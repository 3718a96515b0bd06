"""Rows to pre-train on where nobody has public ones: drawn from marginals that the run releases.

Marginals are a stage of their own. Once they are released, rows of their model are public, and take
the place of public rows in PrivORL's algorithms.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import PrivacyConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.shards import ShardRef
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.asked import levels_asked
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.counting import StepSource, StoredSteps, StoredTransitions
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.rollout import Rollout, known_before
from distributed_privrl.marginals.stage import (
    STAGE,
    ForeseenTable,
    MarginalsStage,
    Table,
    adaptive_program,
    foreseen_table,
    rollout_columns,
    stage_plan,
    stored_steps,
    table_of,
    transition_columns,
)
from distributed_privrl.methods.privorl.config import PrivorlConfig, TrajectoriesConfig
from distributed_privrl.methods.privorl.pretraining_config import (
    MarginalRowsConfig,
    MarginalTrajectoriesConfig,
    ReleasedMarginalsConfig,
)
from distributed_privrl.privacy.units import UnitCount, check_delta_for_units
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.plan import left_for_rounds
from distributed_privrl.stages.verdict import Grade, Verdict

if TYPE_CHECKING:
    from distributed_privrl.marginals.drawing import TableModel
    from distributed_privrl.methods.privorl.pretraining import KeptRows

MARGINALS = STAGE
_FILE = "marginal_rows.safetensors"


@dataclass(frozen=True)
class MarginalRows(abc.ABC):
    """What a run releases to draw rows from: a kind of table, its budget, its rows.

    Args:
        config: of the run.
        settings: of the marginals.

    Privacy: see `MarginalsStage.release` for what is drawn and charged; rows are post-processing.
    """

    config: PrivorlConfig
    settings: ReleasedMarginalsConfig

    @property
    @abc.abstractmethod
    def drawn(self) -> dict[str, int]:
        """How much is drawn, by what it is: rows, or trajectories."""

    @property
    @abc.abstractmethod
    def table(self) -> Table:
        """What makes the columns of the table."""

    def columns(self, store: DatasetStore, found: Bounds | None) -> TableColumns:
        """Return the columns of the table, by public bounds or those that were found."""
        return table_of(self.config.data, store, self.table, found=found)

    def foreseen(self, store: DatasetStore | None) -> ForeseenTable:
        """Return the table as far as public facts tell; see `foreseen_table`."""
        return foreseen_table(self.config.data, store, self.table)

    @abc.abstractmethod
    def source(self, ref: ShardRef) -> StepSource:
        """Return where a worker's rows come from."""

    def given(self, columns: TableColumns) -> tuple[int, ...]:
        """Return the columns that others are drawn given; see `MarginalsStage`."""
        return ()

    @abc.abstractmethod
    def encoded(self, model: TableModel, encoder: str, streams: Streams) -> NDArray[np.float32]:
        """Return rows drawn from a model, as the run learns them ``(N, D)``.

        Args:
            model: of what was released.
            encoder: JSON of what encodes the run's rows.
            streams: of the draws, public.
        """

    def plan(
        self, table: ForeseenTable, units: UnitCount, *, spent: float
    ) -> tuple[MarginalsPlan, PrivacyConfig]:
        """Return the plan of the marginals, and the run's bounds with the delta that they leave.

        Args:
            table: its columns, as far as they are known.
            units: how many there are.
            spent: epsilon of what is released before.

        Raises:
            ConfigError: epsilon is used up.
            UnsafeError: delta, of both stages together, is not below 1/units.
        """
        privacy, share = self.config.privacy, self.settings.share
        if privacy.epsilon is None:
            epsilon, delta = None, privacy.delta
        else:
            check_delta_for_units(privacy.delta, units)
            epsilon = share * left_for_rounds(privacy.epsilon, spent)
            delta = share * privacy.delta
        plan = stage_plan(
            self.config,
            self.settings.selection,
            table=table,
            rows_per_unit=self.settings.table.row_cap(self.config.data),
            units=units,
            epsilon=epsilon,
            delta=delta,
            spent=spent,
        )
        if epsilon is None:
            return plan, privacy
        plan = replace(plan, verdict=_before_rounds(plan.verdict))
        return plan, privacy.model_copy(update={"delta": privacy.delta - delta})

    def shown(self, plan: MarginalsPlan) -> dict[str, Any]:
        """Return what the plan of the rounds shows of the stage before them."""
        facts: dict[str, Any] = {**self.drawn, **plan.details}
        if plan.budget is None:
            return {
                "details": {"marginals": facts},
                "after": ", after marginals",
                "effort": plan.effort,
            }
        verdict = plan.verdict
        limited = verdict is not None and verdict.grade is not Grade.FINE
        facts |= {"epsilon": plan.budget.epsilon, "delta": plan.budget.delta}
        cost = f"epsilon {plan.budget.epsilon:g}"
        return {
            "details": {"marginals": facts},
            "after": f", after marginals for {cost}",
            "verdict": verdict if limited else None,
            "effort": plan.effort,
        }

    def release(
        self, columns: TableColumns, encoder: str, context: RunContext, plan: MarginalsPlan
    ) -> KeptRows:
        """Release what is left of the marginals, and return rows drawn from them.

        The rows are the same after a resume. They are kept in the run's folder, for the process
        that pre-trains.

        Args:
            columns: of the table.
            encoder: JSON of what encodes the run's rows.
            context: under the name of the stage's entry.
            plan: of the stage, whose charge is open.

        Raises:
            BudgetError: crashes used up all steps.
            StorageError: a file cannot be read or written.

        Privacy: as `MarginalsStage.release`; no other event.
        """
        stage = MarginalsStage(
            columns=columns,
            table=self.settings.table,
            program=adaptive_program,
            source=self.source,
            given=self.given(columns),
            asked=levels_asked(columns),
        )
        stage.release(self.config, context, plan)
        kept = kept_rows(context.folder, context.run_id)
        if not kept.path.exists():
            model = stage.model(self.config, context, plan)
            streams = Streams(self.config.seed).child("pretraining")
            kept.save(self.encoded(model, encoder, streams))
        return kept


@dataclass(frozen=True)
class MarginalTransitions(MarginalRows):
    """Independent transitions; see `MarginalRows`."""

    settings: MarginalRowsConfig

    @property
    def drawn(self) -> dict[str, int]:
        """How many rows are drawn."""
        return {"rows": self.settings.rows}

    @property
    def table(self) -> Table:
        """What makes the columns of a transition."""
        return transition_columns(self.config.data, self.settings.table)

    def source(self, ref: ShardRef) -> StoredTransitions:
        """Return the transitions of a shard."""
        return StoredTransitions(ref=ref)

    def encoded(self, model: TableModel, encoder: str, streams: Streams) -> NDArray[np.float32]:
        """Return drawn transitions, those that the encoder takes."""
        drawn = model.transitions(self.settings.rows, streams.numpy("marginal rows"))
        encoded = TransitionEncoder.from_json(encoder).encode(drawn)
        return encoded.rows[encoded.valid]


@dataclass(frozen=True)
class MarginalTrajectories(MarginalRows):
    """Whole trajectories, as the fragments that the run learns; see `MarginalRows`.

    Privacy: as `MarginalRows`; a row of the table is a step with its time and the action before it,
    a unit's rows are the first ``data.max_length`` steps of its trajectories, and these are counted
    by their lengths, too. First states and lengths that the model is pre-trained on are drawn, not
    taken from anybody.
    """

    config: TrajectoriesConfig
    settings: MarginalTrajectoriesConfig

    @property
    def drawn(self) -> dict[str, int]:
        """How many trajectories are drawn."""
        return {"trajectories": self.settings.trajectories}

    @property
    def table(self) -> Table:
        """What makes the columns of a step."""
        return rollout_columns(self.config.data, self.settings.table, longest=self._longest)

    def source(self, ref: ShardRef) -> StoredSteps:
        """Return the steps of a shard's trajectories."""
        return stored_steps(ref)

    def given(self, columns: TableColumns) -> tuple[int, ...]:
        """Return what is known before a step is drawn."""
        return known_before(columns)

    def encoded(self, model: TableModel, encoder: str, streams: Streams) -> NDArray[np.float32]:
        """Return the proper fragments of drawn trajectories."""
        chunks = Rollout(model, self._longest).chunks(
            self.settings.trajectories,
            at_once=self.config.training.sampling.chunk_trajectories,
            streams=streams.child("marginal trajectories"),
        )
        return FragmentEncoder.from_json(encoder).proper(chunks)

    @property
    def _longest(self) -> int:
        return self.config.training.sampling.longest(self.config.data)


def _before_rounds(verdict: Verdict | None) -> Verdict | None:
    """Return the verdict on marginals of a run that does not end with them: rounds follow."""
    if verdict is None or verdict.grade is Grade.FINE:
        return verdict
    return Verdict(
        grade=Grade.LIMITED,
        reason=f"of the marginals before the rounds: {verdict.reason}",
        advice=f"{verdict.advice}; or raise training.pretraining.marginals.share",
    )


def kept_rows(folder: Path, run_id: str) -> KeptRows:
    """Return where a run's folder keeps the rows that were drawn from marginals.

    Args:
        folder: of the run.
        run_id: entry of the ledger that paid for the marginals.
    """
    from distributed_privrl.methods.privorl.pretraining import KeptRows

    return KeptRows(path=folder / _FILE, run_id=run_id)


def check_marginal_rows(config: PrivorlConfig) -> None:
    """Check what the configuration alone tells of pre-training on marginals.

    Raises:
        ConfigError: there are public rows, too, or nothing is pre-trained.
    """
    if config.data.public:
        raise ConfigError(
            "training.pretraining.from=marginals is for runs without public rows, and data.public"
            f" names {', '.join(config.data.public)}: leave either out"
        )
    if not config.training.pretraining.steps:
        raise ConfigError(
            "training.pretraining.from=marginals would pay for rows that nobody learns from: set"
            " training.pretraining.steps above 0, or from to public"
        )
