"""What the tool sees of `policy_value`: the entry point's function."""

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from distributed_privrl.methods.policy_value.method import PolicyValueMethod
from distributed_privrl.methods.policy_value.report import value_sections


def policy_value() -> Method:
    """Return the method ``policy_value``."""
    return Method(
        config=PolicyValueConfig,
        declare=PolicyValueMethod,
        summary="what an agent trained on a release would earn in reality, as a noisy figure",
        inspection=Inspection(file_report=value_sections),
    )
