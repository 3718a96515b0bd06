"""What the tool sees of marginals: the entry points' functions.

Naming a method, and planning a run of it, imports no torch.
"""

from typing import TYPE_CHECKING, Any

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.marginals.config import MarginalsConfig, MarginalsJConfig
from distributed_privrl.methods.marginals.method import MarginalsMethod
from distributed_privrl.methods.marginals.trajectories import TrajectoryMarginalsMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.membership import LossAttack

_NO_GPUS = "its workers only add up integers, which is no work for a GPU"


def _open_attack(declared: Any, world: Any, context: Any) -> "LossAttack":
    """Open the membership attack; see `Inspection`."""
    from distributed_privrl.marginals.attack import open_attack

    return open_attack(declared, world, context)


def marginals() -> Method:
    """Return the method ``marginals``."""
    return Method(
        config=MarginalsConfig,
        declare=MarginalsMethod,
        summary="private synthetic transitions from noisy marginals: for tables of people",
        inspection=Inspection(attack=_open_attack),
        cpus_because=_NO_GPUS,
    )


def marginals_j() -> Method:
    """Return the method ``marginals_j``."""
    return Method(
        config=MarginalsJConfig,
        declare=TrajectoryMarginalsMethod,
        summary="private synthetic trajectories from noisy marginals of their steps",
        inspection=Inspection(attack=_open_attack),
        cpus_because=_NO_GPUS,
    )
