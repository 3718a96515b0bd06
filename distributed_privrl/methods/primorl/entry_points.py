"""What the tool sees of PriMORL and MOPO: the entry points' functions."""

from distributed_privrl.core.config import RunConfig
from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.primorl.config import MopoConfig, PrimorlConfig
from distributed_privrl.methods.primorl.method import PrimorlMethod
from distributed_privrl.methods.primorl.report import policy_sections
from distributed_privrl.methods.primorl.study import study


def primorl() -> Method:
    """Return the method ``primorl``."""
    return _models(PrimorlConfig, "private policy from an ensemble of dynamics models (PriMORL)")


def mopo() -> Method:
    """Return the method ``mopo``."""
    return _models(MopoConfig, "policy from dynamics models, without privacy (MOPO, for reference)")


def _models(config: type[RunConfig], summary: str) -> Method:
    return Method(
        config=config,
        declare=PrimorlMethod,
        summary=summary,
        inspection=Inspection(
            study=study, file_report=policy_sections, own_clipping=lambda _: True
        ),
    )
