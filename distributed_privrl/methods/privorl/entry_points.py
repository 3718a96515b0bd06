"""What the tool sees of PrivORL: the entry points' functions.

Naming a method, and planning a run of it, imports no torch.
"""

from typing import TYPE_CHECKING, Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.evaluation.method import Inspection, Method
from distributed_privrl.methods.privorl.autoregressive import AutoregressiveMethod
from distributed_privrl.methods.privorl.config import (
    DpTransformerConfig,
    PrivorlArConfig,
    PrivorlArJConfig,
    PrivorlJConfig,
    PrivorlJUNetConfig,
    PrivorlNConfig,
)
from distributed_privrl.methods.privorl.tokens import TokensMethod
from distributed_privrl.methods.privorl.trajectories import TrajectoriesMethod
from distributed_privrl.methods.privorl.transitions import TransitionsMethod

if TYPE_CHECKING:
    from distributed_privrl.evaluation.membership import LossAttack


def _open_attack(declared: Any, world: Any, context: Any) -> "LossAttack":
    """Open the membership attack; see `Inspection`."""
    from distributed_privrl.methods.privorl.attack import open_attack

    return open_attack(declared, world, context)


def privorl_n() -> Method:
    """Return the method ``privorl_n``."""
    return Method(
        config=PrivorlNConfig,
        declare=TransitionsMethod,
        summary="private synthetic transitions from a diffusion model (PrivORL-n)",
        inspection=Inspection(attack=_open_attack),
        on_gpus=True,
    )


def privorl_ar() -> Method:
    """Return the method ``privorl_ar``."""
    return Method(
        config=PrivorlArConfig,
        declare=AutoregressiveMethod,
        summary="private synthetic transitions from an autoregressive model (PrivORL-AR)",
        inspection=Inspection(attack=_open_attack),
        on_gpus=True,
    )


def privorl_j() -> Method:
    """Return the method ``privorl_j``."""
    return _trajectories(PrivorlJConfig, "a diffusion transformer (PrivORL-j)")


def privorl_j_unet() -> Method:
    """Return the method ``privorl_j_unet``."""
    return _trajectories(PrivorlJUNetConfig, "a diffusion U-Net (PrivORL-j-U)")


def privorl_ar_j() -> Method:
    """Return the method ``privorl_ar_j``."""
    return _trajectories(PrivorlArJConfig, "an autoregressive model of steps (PrivORL-AR-j)")


def dp_transformer() -> Method:
    """Return the method ``dp_transformer``."""
    return _trajectories(
        DpTransformerConfig, "a causal transformer of tokens (DP-Transformer)", TokensMethod
    )


def _trajectories(
    config: type[RunConfig], model: str, declare: type[TrajectoriesMethod] = TrajectoriesMethod
) -> Method:
    return Method(
        config=config,
        declare=declare,
        summary=f"private synthetic trajectories from {model}",
        inspection=Inspection(attack=_open_attack, whole_units=True),
        on_gpus=True,
    )
