"""What a package offers as a method: its configuration, its declaration, what to look at.

A package names a function that returns a `Method` as an entry point of the group
``distributed_privrl.methods``; ours do the same (pyproject.toml). Whatever such a function needs it
imports itself, so that naming a method costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.progress import Progress

if TYPE_CHECKING:
    from distributed_privrl.core.executor import Executor
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.evaluation.membership import LossAttack, TextAttack
    from distributed_privrl.evaluation.report import Section
    from distributed_privrl.evaluation.source import Sourced
    from distributed_privrl.stages.context import MethodResult, RunContext
    from distributed_privrl.stages.method import DeclaredMethod


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What there is to look at in a finished run.

    Args:
        study: simulations in a public problem that the report shows (configuration, folder of the
            policy); None: there are none.
        file_report: sections on a policy or figures (configuration, the first file as what it is to
            the world, and so what ``study`` found); None for methods that release datasets.
        real_report: sections on files beside real rows (configuration, datasets, the first file,
            where workers run, who alone open documents), for the private report; None: there are
            none.
        attack: opens a finished run's model to a membership attack (the declared method, the world
            that its stages began with, context); draws and charges nothing. None: there is none.
        headline: name of the figure in the report of files that says what they are worth, for
            sweeps; None: there is none.
        whole_units: every row of a unit takes part in a round, not drawn ones.
        own_clipping: whether rounds clip by a rule of the method (configuration), such as one for
            changes by local training, not each unit's gradient; None: they clip gradients.
    """

    study: Callable[[Any, Path, Progress], list[dict[str, Any]]] | None = None
    file_report: (
        Callable[[Any, Sourced[Path], Sourced[Sequence[Any]]], Sequence[Section]] | None
    ) = None
    real_report: Callable[[Any, DatasetStore, Path, Executor], Sequence[Section]] | None = None
    attack: Callable[[Any, Any, RunContext], LossAttack | TextAttack] | None = None
    headline: str | None = None
    whole_units: bool = False
    own_clipping: Callable[[Any], bool] | None = None


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method, as the rest of the tool sees it.

    Args:
        config: its configuration class.
        declare: from a configuration to the run as a declaration, which the engine runs, and from
            which plans, checks and audits follow.
        summary: one line for lists.
        inspection: what there is to look at in a finished run.
        on_gpus: whether it computes where ``runtime.gpus_per_worker`` says; others compute on CPUs
            whatever is reserved, and refuse it.
        cpus_because: why GPUs would have nothing to do for it, as the refusal says.
    """

    config: type[RunConfig]
    declare: Callable[[Any], DeclaredMethod[Any]]
    summary: str
    inspection: Inspection = Inspection()
    on_gpus: bool = False
    cpus_because: str = ""

    def run(self, config: RunConfig, context: RunContext) -> MethodResult:
        """Run it; see `run_method`."""
        from distributed_privrl.stages.run import run_method

        return run_method(self.declare(config), context)

    def open_attack(self, config: RunConfig, context: RunContext) -> LossAttack | TextAttack | None:
        """Return the membership attack on a finished run, on CPUs; None: there is none.

        Raises:
            ConfigError: the ledger does not hold what the run released before its stages, or the
                method cannot rebuild what it trained.
            StorageError: a checkpoint cannot be read.

        Privacy: nothing is drawn or charged; releases of the run are read from the ledger again.
        """
        from distributed_privrl.stages.run import recalled_world

        if self.inspection.attack is None:
            return None
        cpus = config.runtime.model_copy(update={"gpus_per_worker": 0.0})
        declared = self.declare(config.model_copy(update={"runtime": cpus}))
        return self.inspection.attack(declared, recalled_world(declared, context), context)
