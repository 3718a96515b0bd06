"""What a method declares of a run; `stages.run.run_method` decides the order.

A method is a frozen object built from its configuration. Its *world* is what it has found out so
far: public facts at first, then each answer that was paid for. The engine hands the world from step
to step, so that nothing is built twice and nothing can be used before it is paid for.
"""

import abc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from distributed_privrl.core.config import RunConfig
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.units import UnitCount
from distributed_privrl.stages.context import CertifiedDataset, Release, RunContext
from distributed_privrl.stages.plan import Plan

WorldT = TypeVar("WorldT")


@dataclass(frozen=True, kw_only=True)
class FirstRelease(Generic[WorldT]):
    """What is released once, before any stage: bounds, start states, a support.

    Args:
        draw: from the world and the number of units to the world that knows the answer, and the
            certificate's stage. It draws through `stages.first_releases.release_first`, which
            charges first and makes a resume read the stored answer.
    """

    draw: Callable[[WorldT, UnitCount], tuple[WorldT, Stage]]


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
    """

    release: Release
    beside: tuple[CertifiedDataset, ...] = ()


class DeclaredMethod(abc.ABC, Generic[WorldT]):
    """A method as a declaration: a frozen object built from a configuration."""

    config: RunConfig

    @abc.abstractmethod
    def check(self, context: RunContext) -> WorldT:
        """Return the public world; refuse all that can be refused. Reads no sensitive row.

        Raises:
            ConfigError: configuration and datasets do not fit together.
            UnsafeError: no guarantee covers what is asked for.
        """

    def first_releases(self, world: WorldT, context: RunContext) -> Sequence[FirstRelease[WorldT]]:
        """Return what is released before the stages, in order; a count is not among them."""
        return ()

    @abc.abstractmethod
    def stages(self, world: WorldT, units: UnitCount) -> Sequence[StagePlan]:
        """Return the stages, priced for ``units``; no data decide on them.

        Raises:
            ConfigError: the budget leaves nothing for one, or the units are too few.
            UnsafeError: delta is not below 1/units.
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

    @abc.abstractmethod
    def finish(self, world: WorldT, context: RunContext, certified: Sequence[Stage]) -> Released:
        """Return what the run ends in: post-processing of what the stages released."""
