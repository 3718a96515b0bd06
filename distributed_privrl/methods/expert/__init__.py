"""Expert-level privacy: stable prefixes of many experts, and selective DP-SGD (paper 004)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from distributed_privrl.evaluation.method import Method


def expert() -> "Method":
    """Return the method ``expert``."""
    from distributed_privrl.evaluation.method import Method
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
