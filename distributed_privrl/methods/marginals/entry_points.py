"""What the tool sees of marginals: the entry points' functions."""

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.marginals.attack import open_attack
from distributed_privrl.methods.marginals.config import MarginalsConfig, MarginalsJConfig
from distributed_privrl.methods.marginals.method import MarginalsMethod
from distributed_privrl.methods.marginals.trajectories import TrajectoryMarginalsMethod


def marginals() -> Method:
    """Return the method ``marginals``."""
    return Method(
        config=MarginalsConfig,
        declare=MarginalsMethod,
        summary="private synthetic transitions from noisy marginals: for tables of people",
        inspection=Inspection(attack=open_attack),
    )


def marginals_j() -> Method:
    """Return the method ``marginals_j``."""
    return Method(
        config=MarginalsJConfig,
        declare=TrajectoryMarginalsMethod,
        summary="private synthetic trajectories from noisy marginals of their steps",
        inspection=Inspection(attack=open_attack),
    )
