"""What a method declares of a run; `stages.run.run_method` decides the order.

A method is a frozen object built from its configuration. Its *world* is what it has found out so
far: public facts at first, then each answer that was paid for. The engine hands the world from step
to step, so that nothing is built twice and nothing can be used before it is paid for.
"""

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from distributed_privrl.core.config import NoisyCount, RunConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue
from distributed_privrl.privacy.units import Relation, UnitCount
from distributed_privrl.stages.asked_measures import first_measures
from distributed_privrl.stages.charging import COUNT
from distributed_privrl.stages.context import CertifiedDataset, Release, RunContext
from distributed_privrl.stages.first_releases import FirstRelease
from distributed_privrl.stages.plan import Plan

WorldT = TypeVar("WorldT")


@dataclass(frozen=True, kw_only=True)
class StagePlan:
    """A stage that is charged by itself, before any stage draws.

    Args:
        name: of the certificate's stage.
        plan: its events and their number, spare ones included, and its part of the budget; none
            without privacy.
        entry: of the ledger, ``<run>/<entry>``; empty: the run's own.
    """

    name: str
    plan: Plan
    entry: str = ""


@dataclass(frozen=True, kw_only=True)
class Released:
    """What a run ends in.

    Args:
        release: what may leave once it is certified.
        beside: datasets that may leave too, under certificates of their own.
        metrics: further lines of ``metrics.jsonl``; each names its stage.
    """

    release: Release
    beside: tuple[CertifiedDataset, ...] = ()
    metrics: tuple[Mapping[str, PublicValue | ReleasedValue], ...] = ()


class DeclaredMethod(abc.ABC, Generic[WorldT]):
    """A method as a declaration: a frozen object built from a configuration."""

    config: RunConfig
    needs_successors: ClassVar[bool] = True
    """Whether it learns what follows a row; without, a table of rows alone is enough."""
    needs_decisions: ClassVar[bool] = True
    """Whether rows must have actions and rewards; without, a table of anything is enough."""
    has_columns: ClassVar[bool] = True
    """Whether its work and noise depend on a row's columns; documents have none."""

    def check_config(self) -> None:
        """Refuse what the configuration alone tells, before any dataset is opened.

        Raises:
            ConfigError: settings do not fit together.
            UnsafeError: no guarantee covers what is asked for.
        """

    def first_releases(self) -> Sequence[FirstRelease[WorldT]]:
        """Return what is released before the stages, in order; a count is not among them."""
        return ()

    def all_first_releases(self) -> tuple[FirstRelease[WorldT], ...]:
        """Return the same, and after them the measures that the public report asks for."""
        return (*self.first_releases(), *first_measures(self.config))

    @property
    def relation(self) -> Relation:
        """What neighbouring datasets are."""
        return Relation(self.config.privacy.relation)

    @property
    def charged_before(self) -> dict[str, float]:
        """Epsilon of what is released before the stages, by its name; a count is among them."""
        units = self.config.data.units
        counted = {COUNT: units.epsilon} if isinstance(units, NoisyCount) else {}
        return counted | {first.name: first.epsilon for first in self.all_first_releases()}

    @property
    def spent(self) -> float:
        """Epsilon of all that is released before the stages."""
        return sum(self.charged_before.values())

    @abc.abstractmethod
    def check(self, context: RunContext) -> WorldT:
        """Return the public world; refuse all that can be refused. Reads no sensitive row.

        Raises:
            ConfigError: configuration and datasets do not fit together.
            UnsafeError: no guarantee covers what is asked for.
        """

    @abc.abstractmethod
    def stages(self, world: WorldT | None, units: UnitCount) -> Sequence[StagePlan]:
        """Return the stages, priced for ``units``; no data decide on them.

        Args:
            world: as `check` and the first releases left it; None: a plan is made, and no dataset
                has been opened.
            units: how many there are.

        Raises:
            ConfigError: the budget leaves nothing for one, or the units are too few.
            UnsafeError: delta is not below 1/units.
        """

    def foreseen_stages(self, store: DatasetStore | None, units: UnitCount) -> Sequence[StagePlan]:
        """Return the stages as a plan shows them, by default for no world at all.

        A method whose noise depends on what datasets declare (their spaces) looks here, where they
        are; on how many rows there are, and what they hold, nothing may depend.

        Args:
            store: datasets, which may lack those of the run; None: Minari's folder.
            units: how many there are.

        Raises:
            ConfigError: as `stages`, or a public file is wrong.
            UnsafeError: as `stages`.
        """
        return self.stages(None, units)

    def check_machine(self, world: WorldT, context: RunContext) -> None:
        """Refuse what only long work tells: networks that cannot be built, workers without a GPU.

        Called last of all checks, when the budget is held and nothing has been drawn; a run that is
        refused here holds nothing.

        Args:
            world: as `check` left it.
            context: of the run.

        Raises:
            ConfigError: the machine, or the configuration, cannot do it.
        """

    def policies(self, context: RunContext) -> str | None:
        """Return the digest of the sensitive policies that a stage hosts; None: there are none."""
        return None

    def ready(self, world: WorldT, stages: Sequence[StagePlan]) -> WorldT:
        """Return the world that stages work on. The last step that may refuse the run."""
        return world

    def before(self, world: WorldT, context: RunContext) -> None:
        """Do public work: initial parameters, pre-training."""

    @abc.abstractmethod
    def work(self, stage: StagePlan, world: WorldT, context: RunContext) -> WorldT:
        """Do a stage and return the world with what it released.

        Args:
            stage: one of `stages`, whose charge is open.
            world: with what earlier stages released, all of them settled.
            context: under the name of the stage's entry.
        """

    def recalled(self, world: WorldT, context: RunContext) -> WorldT:
        """Return the world of a finished run with what its stages released, as `finish` needs it.

        Args:
            world: as the stages began with it.
            context: of the run, whose checkpoints are read.

        Raises:
            StorageError: they cannot be read.
        """
        return world

    @abc.abstractmethod
    def finish(self, world: WorldT, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Return what the run ends in: post-processing of what the stages released."""
