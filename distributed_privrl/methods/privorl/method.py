"""PrivORL as a declared run: scaling, pre-training, private fine-tuning, sampling.

Reference: PrivORL, algorithms 1 and 2.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import PrivacyConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.plan import MarginalsPlan
from distributed_privrl.marginals.stage import ForeseenTable
from distributed_privrl.methods.privorl.config import PrivorlConfig
from distributed_privrl.methods.privorl.marginal_rows import (
    MARGINALS,
    MarginalRows,
    check_marginal_rows,
    kept_rows,
)
from distributed_privrl.methods.privorl.model_config import RowPart
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.pretraining_config import (
    PretrainingConfig,
    SourcedPretrainingConfig,
)
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.bounding import bounds_question, first_bounds
from distributed_privrl.stages.coding import foreseen_encoder, public_encoder
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.encoders import check_bounds_named, foreseen_columns, search_ranges
from distributed_privrl.stages.first_releases import FirstRelease, Question
from distributed_privrl.stages.method import DeclaredMethod, Released, StagePlan
from distributed_privrl.stages.plan import check_relation
from distributed_privrl.stages.round_plan import RoundPlan, make_plan
from distributed_privrl.stages.round_verdict import with_verdict

if TYPE_CHECKING:
    from distributed_privrl.methods.privorl.pretraining import KeptRows


@dataclass(frozen=True, kw_only=True)
class World:
    """What a run knows.

    Args:
        ranges: where bounds are searched with noise; None: they are public.
        parts: of the variant, with bounds and a support that are public or paid for.
        columns: of the table whose marginals are released; None: there are none.
        drawn: rows to pre-train on, once those marginals are released.
    """

    ranges: Bounds | None
    parts: Parts
    columns: TableColumns | None = None
    drawn: KeptRows | None = None


@dataclass(frozen=True)
class PrivorlMethod(DeclaredMethod[World]):
    """What the variants of PrivORL share.

    Args:
        config: of the run.

    Privacy: unit ``data.unit``, relation ``privacy.relation``; scaling from public facts, or from
    quantiles found with noise (event ``pure_dp``); the number of units declared or counted with
    noise; the support that draws keep to, if any, found with noise (event ``discrete_laplace``);
    marginals that rows to pre-train on are drawn from, if any, are a stage of their own (events
    ``discrete_gaussian`` and ``bounded_range``); beyond that, sensitive rows touch the parameters
    through private rounds alone (event ``poisson_gaussian``); what is drawn from either is
    post-processing.
    """

    config: PrivorlConfig

    @abc.abstractmethod
    def parts(self, store: DatasetStore, encoder: TransitionEncoder) -> Parts:
        """Return the variant's parts, for the encoder of its transitions."""

    @property
    def marginal_rows(self) -> MarginalRows | None:
        """What is released to draw rows to pre-train on; None: they are public."""
        return None

    def informed(self, parts: Parts, rows: NDArray[np.float32]) -> Parts:
        """Return the parts once rows to pre-train on ``(N, D)`` were drawn.

        Privacy: the rows are post-processing of what the run released.
        """
        return parts

    def check_config(self) -> None:
        """Refuse settings that do not fit together."""
        check_config(self.config)

    def first_releases(self) -> tuple[FirstRelease[World], ...]:
        """Return the bounds, if they are found with noise."""
        return first_bounds(self.config.data, self._ask_bounds)

    def check(self, context: RunContext) -> World:
        """Return the variant's parts; see `DeclaredMethod.check`."""
        ranges = search_ranges(self.config.data, context.store, relation=self.relation)
        return self._bounded(ranges, ranges, context.store)

    def check_machine(self, world: World, context: RunContext) -> None:
        """Refuse workers that see no GPU, and a network that cannot be built."""
        from distributed_privrl.stages.devices import check_device

        check_device(self.config.runtime, context.executor)
        world.parts.synthesizer.build(self.config.seed)

    def _bounded(self, ranges: Bounds | None, found: Bounds | None, store: DatasetStore) -> World:
        """Return the world for bounds that are public, or were found in ``ranges``."""
        parts = self.parts(store, public_encoder(self.config, store, found))
        rows = self.marginal_rows
        columns = None if rows is None else rows.columns(store, found)
        return World(ranges=ranges, parts=parts, columns=columns)

    def _ask_bounds(self, world: World, units: UnitCount, context: RunContext) -> Question[World]:
        assert world.ranges is not None
        asked = bounds_question(
            self.config.data, context, world.ranges, relation=self.relation, units=units
        )
        return asked.then(lambda found: self._bounded(world.ranges, found, context.store))

    def stages(self, world: World | None, units: UnitCount) -> tuple[StagePlan, ...]:
        """Return the rounds, and before them the marginals that pre-training draws rows from."""
        columns = None if world is None else world.columns
        weights = None if world is None else world.parts.synthesizer.weights
        table = ForeseenTable(columns=columns, assumed=columns is None)
        return self.priced(table, units, weights)

    def foreseen_stages(
        self, store: DatasetStore | None, units: UnitCount
    ) -> tuple[StagePlan, ...]:
        """Return the same for the columns that public facts tell."""
        rows, known = self.marginal_rows, foreseen_columns(self.config.data, store)
        table = ForeseenTable(columns=None, assumed=True) if rows is None else rows.foreseen(store)
        weights = None if known is None else self.weights_of(foreseen_encoder(self.config, known))
        return self.priced(table, units, weights)

    @property
    @abc.abstractmethod
    def smaller(self) -> str:
        """What makes the network smaller, in words of the configuration."""

    @abc.abstractmethod
    def weights_of(self, encoder: TransitionEncoder) -> int:
        """Return about how many numbers rounds learn, for a plan that reads no row.

        Args:
            encoder: of transitions; see `foreseen_encoder`.
        """

    def priced(
        self, table: ForeseenTable, units: UnitCount, weights: int | None
    ) -> tuple[StagePlan, ...]:
        """Return the stages for what is known of the columns.

        Args:
            table: whose marginals are released, if any are.
            units: how many there are.
            weights: numbers that the rounds learn; None: nobody knows.

        Raises:
            ConfigError: as `stages`.
            UnsafeError: as `stages`.
        """
        rows = self.marginal_rows
        if rows is None:
            return (self._rounds(self.config.privacy, units, weights, spent=self.spent),)
        first, left = rows.plan(table, units, spent=self.spent)
        cost = 0.0 if first.budget is None else first.budget.epsilon
        spent = self.spent + cost
        rounds = self._rounds(left, units, weights, spent=spent, **rows.shown(first))
        return (StagePlan(name=MARGINALS, entry=MARGINALS, plan=first), rounds)

    def _rounds(
        self,
        privacy: PrivacyConfig,
        units: UnitCount,
        weights: int | None,
        *,
        spent: float,
        **shown: Any,
    ) -> StagePlan:
        """Return the rounds; ``privacy`` is what the run may cost, at the delta of the rounds."""
        plan = make_plan(
            privacy,
            self.config.training,
            unit=self.config.data.unit,
            units=units,
            spent=spent,
            curiosity_rate=self.config.training.curiosity_rate,
        )
        taught = bool(self.config.training.pretraining.steps)
        plan = with_verdict(plan, weights, taught=taught, smaller=self.smaller, **shown)
        if weights is not None:
            before = Effort() if plan.effort is None else plan.effort
            plan = replace(plan, effort=before + self._effort(plan, weights))
        return StagePlan(name="fine-tune", plan=plan)

    @property
    @abc.abstractmethod
    def uses(self) -> tuple[float, float]:
        """How often each weight is used: by a drawn row of a unit, and by the whole release."""

    def _effort(self, plan: RoundPlan, weights: int) -> Effort:
        """Return the work of pre-training, rounds and drawing."""
        training, (of_row, of_release) = self.config.training, self.uses
        rows = training.expected_batch_size * training.noise_multiplicity * of_row
        pretraining = training.pretraining
        return Effort(
            rounds=plan.rounds,
            private_rows=plan.rounds * rows * weights,
            learned_rows=pretraining.steps * pretraining.batch_size * of_row * weights,
            drawn_rows=of_release * weights,
        )

    def work(self, stage: StagePlan, world: World, context: RunContext) -> World:
        """Release marginals and draw rows from them; or pre-train, and fine-tune in rounds."""
        from distributed_privrl.methods.privorl.fine_tuning import fine_tune
        from distributed_privrl.methods.privorl.pretraining import pretrain

        if isinstance(stage.plan, MarginalsPlan):
            rows = self.marginal_rows
            assert rows is not None
            assert world.columns is not None
            kept = rows.release(world.columns, world.parts.rows.encoder, context, stage.plan)
            return self.with_rows(world, kept)
        assert isinstance(stage.plan, RoundPlan)
        parts = world.parts
        pretrain(self.config, context, parts.rows, parts.synthesizer, drawn=world.drawn)
        fine_tune(self.config, context, world.parts, stage.plan)
        return world

    def with_rows(self, world: World, kept: KeptRows) -> World:
        """Return the world that knows the rows drawn from released marginals."""
        return replace(world, drawn=kept, parts=self.informed(world.parts, kept.read()))

    def recalled(self, world: World, context: RunContext) -> World:
        """Return the world as the rounds of a finished run began with it.

        Args:
            world: as its stages began with it.
            context: of the run.

        Raises:
            StorageError: the rows that were drawn from marginals cannot be read.
        """
        if self.marginal_rows is None:
            return world
        return self.with_rows(world, kept_rows(context.folder, f"{context.run_id}/{MARGINALS}"))

    def finish(self, world: World, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Draw the synthetic rows."""
        from distributed_privrl.methods.privorl.release import SYNTHETIC, draw_chunks

        parts = world.parts
        draw_chunks(parts.synthesizer, parts.drawer, self.config, context)
        return Released(release=parts.release(context.drawn_folder / SYNTHETIC, parts.drawer))


def check_config(config: PrivorlConfig) -> None:
    """Check all that the configuration alone tells, before anything is counted or found.

    Raises:
        ConfigError: settings do not fit together.
        UnsafeError: the relation is ``replace_one``.
    """
    check_relation(config.privacy)
    pretraining = config.training.pretraining
    if pretraining.from_marginals:
        check_marginal_rows(config)
    elif pretraining.steps and not config.data.public:
        sourced = isinstance(pretraining, SourcedPretrainingConfig)
        also = ", or training.pretraining.from to marginals" if sourced else ""
        raise ConfigError(
            "training.pretraining.steps > 0 needs data.public: name a public dataset, or set the"
            f" steps to 0{also}"
        )
    check_bounds_named(config.data)


def check_public_parts(parts: Sequence[RowPart], pretraining: PretrainingConfig) -> None:
    """Check that public data can teach the parts of a row that they alone are to teach.

    Raises:
        ConfigError: there is no pre-training, or nothing is left to learn.
    """
    if set(parts) == set(get_args(RowPart)):
        raise ConfigError("model.public_parts has all parts of a row: nothing is left to learn")
    if parts and not pretraining.steps:
        raise ConfigError(
            f"model.public_parts={list(parts)} need public pre-training: set"
            " training.pretraining.steps above 0, or leave them out"
        )
