"""What the tool sees of DP-APVI and DP-VAPVI: the entry points' functions."""

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.method import LinearMethod, TabularMethod
from distributed_privrl.methods.value_iteration.report import policy_sections, study


def apvi() -> Method:
    """Return the method ``apvi``."""
    return Method(
        config=ApviConfig,
        declare=TabularMethod,
        summary="private policy for finitely many states, from noisy counts (DP-APVI)",
        inspection=Inspection(study=study, file_report=policy_sections),
    )


def vapvi() -> Method:
    """Return the method ``vapvi``."""
    return Method(
        config=VapviConfig,
        declare=LinearMethod,
        summary="private policy for linear features, from noisy regressions (DP-VAPVI, redesigned)",
        inspection=Inspection(study=study, file_report=policy_sections),
    )
