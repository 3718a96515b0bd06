"""What the tool sees of the expert level: the entry points' functions."""

from distributed_privrl.evaluation.method import Method
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.method import ExpertMethod
from distributed_privrl.methods.expert.plan import check_config, plan_expert
from distributed_privrl.methods.expert.report import policy_sections, study


def expert() -> Method:
    """Return the method ``expert``."""
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
