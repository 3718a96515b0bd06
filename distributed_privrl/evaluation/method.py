"""What a package offers as a method: its configuration, its declaration, what to look at.

A package names a function that returns a `Method` as an entry point of the group
``distributed_privrl.methods``; ours do the same (pyproject.toml). Whatever such a function needs it
imports itself, so that naming a method costs nothing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.progress import Progress
from distributed_privrl.evaluation.membership import LossAttack
from distributed_privrl.evaluation.report import Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.stages.context import MethodResult, RunContext
from distributed_privrl.stages.method import DeclaredMethod
from distributed_privrl.stages.plan import Plan
from distributed_privrl.stages.run import run_method


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method, as the rest of the tool sees it.

    Args:
        config: its configuration class.
        plan: what a run would do and cost; opens no data.
        check: refuses what the configuration alone tells, before units are counted; None: nothing
            needs to be checked apart from the plan.
        declare: from a configuration to the run as a declaration, which the engine runs.
        summary: one line for lists.
        study: simulations in a public problem that the report shows (configuration, folder of the
            policy); None: there are none.
        policy_report: sections on a policy (configuration, its file as what it is to the world,
            and so what ``study`` found); None for methods that release datasets.
        attack: opens a finished run's model to a membership attack; draws and charges nothing. None
            where the method offers none.
        whole_units: every row of a unit takes part in a round, not drawn ones.
        own_clipping: whether rounds clip by a rule of the method (configuration), such as one for
            changes by local training, not each unit's gradient; None: they clip gradients.
        charged_before: epsilon of what is released before the rounds beside a count and bounds
            (configuration), by its name in the ledger; None: nothing is.
        on_gpus: whether it computes where ``runtime.gpus_per_worker`` says; others compute on CPUs
            whatever is reserved, and refuse it.
    """

    config: type[RunConfig]
    plan: Callable[[Any], Plan]
    declare: Callable[[Any], DeclaredMethod[Any]]
    summary: str
    study: Callable[[Any, Path, Progress], list[dict[str, Any]]] | None = None
    policy_report: (
        Callable[[Any, Sourced[Path], Sourced[Sequence[Any]]], Sequence[Section]] | None
    ) = None
    attack: Callable[[Any, RunContext], LossAttack] | None = None
    whole_units: bool = False
    own_clipping: Callable[[Any], bool] | None = None
    charged_before: Callable[[Any], dict[str, float]] | None = None
    check: Callable[[Any], None] | None = None
    on_gpus: bool = False

    def run(self, config: RunConfig, context: RunContext) -> MethodResult:
        """Run it; see `run_method`."""
        return run_method(self.declare(config), context)
