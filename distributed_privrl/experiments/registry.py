"""Which methods exist, by name: their configuration, their plan and their run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig, read_yaml, validate, with_overrides
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.progress import Progress
from distributed_privrl.evaluation.membership import LossAttack
from distributed_privrl.evaluation.report import Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.rounds.context import MethodResult, RunContext
from distributed_privrl.rounds.plan import Plan
from distributed_privrl.stages.method import DeclaredMethod
from distributed_privrl.stages.run import run_method


@dataclass(frozen=True, kw_only=True)
class Method:
    """A method of the papers.

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


def _privorl_n() -> Method:
    from distributed_privrl.methods.privorl.attack import open_attack
    from distributed_privrl.methods.privorl.config import PrivorlNConfig
    from distributed_privrl.methods.privorl.run import check_config
    from distributed_privrl.methods.privorl.transitions import plan_transitions, privorl_n

    return Method(
        config=PrivorlNConfig,
        plan=plan_transitions,
        declare=privorl_n,
        summary="private synthetic transitions from a diffusion model (PrivORL-n)",
        attack=open_attack,
        check=check_config,
        on_gpus=True,
    )


def _privorl_ar() -> Method:
    from distributed_privrl.methods.privorl.attack import open_likelihood_attack
    from distributed_privrl.methods.privorl.autoregressive import privorl_ar
    from distributed_privrl.methods.privorl.config import PrivorlArConfig
    from distributed_privrl.methods.privorl.run import check_config
    from distributed_privrl.methods.privorl.transitions import plan_transitions

    return Method(
        config=PrivorlArConfig,
        plan=plan_transitions,
        declare=privorl_ar,
        summary="private synthetic transitions from an autoregressive model (PrivORL-AR)",
        attack=open_likelihood_attack,
        check=check_config,
        on_gpus=True,
    )


def _privorl_j() -> Method:
    from distributed_privrl.methods.privorl.trajectory_config import PrivorlJConfig

    return _trajectories(PrivorlJConfig, "a diffusion transformer (PrivORL-j)")


def _privorl_j_unet() -> Method:
    from distributed_privrl.methods.privorl.trajectory_config import PrivorlJUNetConfig

    return _trajectories(PrivorlJUNetConfig, "a diffusion U-Net (PrivORL-j-U)")


def _privorl_ar_j() -> Method:
    from distributed_privrl.methods.privorl.trajectory_config import PrivorlArJConfig

    return _trajectories(PrivorlArJConfig, "an autoregressive model of steps (PrivORL-AR-j)")


def _trajectories(config: type[RunConfig], model: str) -> Method:
    from distributed_privrl.methods.privorl.attack import open_trajectory_attack
    from distributed_privrl.methods.privorl.run import check_config
    from distributed_privrl.methods.privorl.trajectories import plan_trajectories, privorl_j

    return Method(
        config=config,
        plan=plan_trajectories,
        declare=privorl_j,
        summary=f"private synthetic trajectories from {model}",
        attack=open_trajectory_attack,
        whole_units=True,
        check=check_config,
        charged_before=lambda config: config.charged_before,
        on_gpus=True,
    )


def _apvi() -> Method:
    from distributed_privrl.methods.value_iteration.config import ApviConfig
    from distributed_privrl.methods.value_iteration.planning import plan_tabular
    from distributed_privrl.methods.value_iteration.report import policy_sections, study
    from distributed_privrl.methods.value_iteration.run import TabularMethod

    return Method(
        config=ApviConfig,
        plan=plan_tabular,
        declare=TabularMethod,
        summary="private policy for finitely many states, from noisy counts (DP-APVI)",
        study=study,
        policy_report=policy_sections,
    )


def _vapvi() -> Method:
    from distributed_privrl.methods.value_iteration.config import VapviConfig
    from distributed_privrl.methods.value_iteration.planning import plan_linear
    from distributed_privrl.methods.value_iteration.report import policy_sections, study
    from distributed_privrl.methods.value_iteration.run import LinearMethod

    return Method(
        config=VapviConfig,
        plan=plan_linear,
        declare=LinearMethod,
        summary="private policy for linear features, from noisy regressions (DP-VAPVI, redesigned)",
        study=study,
        policy_report=policy_sections,
    )


def _primorl() -> Method:
    from distributed_privrl.methods.primorl.config import PrimorlConfig

    return _models(PrimorlConfig, "private policy from an ensemble of dynamics models (PriMORL)")


def _mopo() -> Method:
    from distributed_privrl.methods.primorl.config import MopoConfig

    return _models(MopoConfig, "policy from dynamics models, without privacy (MOPO, for reference)")


def _models(config: type[RunConfig], summary: str) -> Method:
    from distributed_privrl.methods.primorl.planning import (
        charged_before,
        check_config,
        plan_primorl,
    )
    from distributed_privrl.methods.primorl.report import policy_sections
    from distributed_privrl.methods.primorl.run import PrimorlMethod
    from distributed_privrl.methods.primorl.study import study

    return Method(
        config=config,
        plan=plan_primorl,
        declare=PrimorlMethod,
        summary=summary,
        study=study,
        policy_report=policy_sections,
        own_clipping=lambda _: True,
        charged_before=charged_before,
        check=check_config,
    )


def _expert() -> Method:
    from distributed_privrl.methods.expert.config import ExpertConfig
    from distributed_privrl.methods.expert.planning import check_config, plan_expert
    from distributed_privrl.methods.expert.report import policy_sections, study
    from distributed_privrl.methods.expert.run import ExpertMethod

    return Method(
        config=ExpertConfig,
        plan=plan_expert,
        declare=ExpertMethod,
        summary="private policy from many experts, each of whose policies is hidden",
        study=study,
        policy_report=policy_sections,
        own_clipping=lambda config: config.training.local == "federated",
        check=check_config,
    )


METHODS: Mapping[str, Callable[[], Method]] = {
    "privorl_n": _privorl_n,
    "privorl_ar": _privorl_ar,
    "privorl_j": _privorl_j,
    "privorl_j_unet": _privorl_j_unet,
    "privorl_ar_j": _privorl_ar_j,
    "primorl": _primorl,
    "mopo": _mopo,
    "apvi": _apvi,
    "vapvi": _vapvi,
    "expert": _expert,
}


def method_named(name: object) -> Method:
    """Return the method called ``name``.

    Raises:
        ConfigError: there is none.
    """
    if name not in METHODS:
        raise ConfigError(f"method {name!r} is unknown: choose one of {', '.join(METHODS)}")
    return METHODS[str(name)]()


def parse_config(
    values: Mapping[str, Any], *, source: str, overrides: Sequence[str] = ()
) -> RunConfig:
    """Return the configuration in ``values``, as its method's class.

    Raises:
        ConfigError: an unknown method or key, or a value out of range.
    """
    values = with_overrides(values, overrides)
    if "method" not in values:
        raise ConfigError(f"{source}: 'method' is missing: one of {', '.join(METHODS)}")
    return validate(method_named(values["method"]).config, values, source=source)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the configuration in a YAML file.

    Args:
        path: CONFIG.yaml.
        overrides: ``section.key=value``.

    Raises:
        ConfigError: the file is missing or wrong; the message lists each wrong key.
    """
    return parse_config(read_yaml(Path(path)), source=str(path), overrides=overrides)


def plan_run(config: RunConfig) -> Plan:
    """Return the noise, rounds and cost of a run; opens no data.

    Raises:
        ConfigError: the number of units is not declared, a value is impossible, or GPUs are asked
            for in vain.
        UnsafeError: delta is not below 1/units.
    """
    check_gpus(config)
    return method_named(config.method).plan(config)


def check_run(config: RunConfig) -> None:
    """Check what `plan_run` does, as far as it is known before units are counted; opens no data.

    Raises:
        ConfigError: settings do not fit together, or GPUs are asked for in vain.
        UnsafeError: the method does not know the relation.
    """
    check_gpus(config)
    if (check := method_named(config.method).check) is not None:
        check(config)


def check_gpus(config: RunConfig) -> None:
    """Refuse GPUs that would be reserved for workers which compute on CPUs all the same.

    Raises:
        ConfigError: ``runtime.gpus_per_worker`` is above 0 and the method has no use for it.
    """
    gpus = config.runtime.gpus_per_worker
    if gpus > 0 and not method_named(config.method).on_gpus:
        raise ConfigError(
            f"runtime.gpus_per_worker={gpus:g}, but {config.method} computes on CPUs alone: set it"
            " to 0"
        )
