"""What the tool sees of PATE-GAN: the entry points' functions.

Naming a method, and planning a run of it, imports no torch.
"""

from typing import TYPE_CHECKING, Any

from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.pate_gan.config import PateGanConfig, PrePateGanConfig
from distributed_privrl.methods.pate_gan.method import PateGanMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.membership import LossAttack

_NO_GPUS = "its networks are so small that a GPU would wait for the next one most of the time"


def _open_attack(declared: Any, world: Any, context: Any) -> "LossAttack":
    """Open the membership attack; see `Inspection`."""
    from distributed_privrl.methods.pate_gan.attack import open_attack

    return open_attack(declared, world, context)


def pate_gan() -> Method:
    """Return the method ``pate_gan``."""
    return Method(
        config=PateGanConfig,
        declare=PateGanMethod,
        summary="private synthetic transitions of a GAN that learns by votes: a baseline",
        inspection=Inspection(attack=_open_attack),
        cpus_because=_NO_GPUS,
    )


def pre_pate_gan() -> Method:
    """Return the method ``pre_pate_gan``."""
    return Method(
        config=PrePateGanConfig,
        declare=PateGanMethod,
        summary="the same, pre-trained on public transitions: a baseline",
        inspection=Inspection(attack=_open_attack),
        cpus_because=_NO_GPUS,
    )
