"""What the tool sees of marginals: the entry points' functions."""

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.marginals.attack import open_attack
from distributed_privrl.methods.marginals.config import MarginalsConfig
from distributed_privrl.methods.marginals.method import MarginalsMethod


def marginals() -> Method:
    """Return the method ``marginals``."""
    return Method(
        config=MarginalsConfig,
        declare=MarginalsMethod,
        summary="private synthetic transitions from noisy marginals: for tables of people",
        inspection=Inspection(attack=open_attack),
    )
