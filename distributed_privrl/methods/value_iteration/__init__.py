"""Private value iteration: DP-APVI for tables, DP-VAPVI for linear MDPs (paper 002)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed_privrl.evaluation.method import Method


def apvi() -> "Method":
    """Return the method ``apvi``."""
    from distributed_privrl.evaluation.method import Method
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


def vapvi() -> "Method":
    """Return the method ``vapvi``."""
    from distributed_privrl.evaluation.method import Method
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
