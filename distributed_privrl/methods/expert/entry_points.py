"""What the tool sees of the expert level: the entry points' functions."""

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.method import ExpertMethod
from distributed_privrl.methods.expert.report import policy_sections, study


def expert() -> Method:
    """Return the method ``expert``."""
    return Method(
        config=ExpertConfig,
        declare=ExpertMethod,
        summary="private policy from many experts, each of whose policies is hidden",
        inspection=Inspection(
            study=study,
            file_report=policy_sections,
            own_clipping=lambda config: config.training.local == "federated",
        ),
    )
