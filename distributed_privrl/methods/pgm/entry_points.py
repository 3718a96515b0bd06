"""What the tool sees of `pgm`: the entry point's function.

Naming the method, and planning a run of it, imports no torch.
"""

from typing import TYPE_CHECKING, Any

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.pgm.config import PgmConfig
from distributed_privrl.methods.pgm.method import PgmMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.membership import LossAttack


def _open_attack(declared: Any, world: Any, context: Any) -> "LossAttack":
    """Open the membership attack; see `Inspection`."""
    from distributed_privrl.marginals.attack import open_attack

    return open_attack(declared, world, context)


def pgm() -> Method:
    """Return the method ``pgm``."""
    return Method(
        config=PgmConfig,
        declare=PgmMethod,
        summary="private synthetic transitions by private-PGM from a fixed set of marginals",
        inspection=Inspection(attack=_open_attack),
        cpus_because="its workers only add up integers, which is no work for a GPU",
    )
