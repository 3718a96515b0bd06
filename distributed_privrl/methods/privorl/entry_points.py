"""What the tool sees of PrivORL: the entry points' functions."""

from distributed_privrl.core.config import RunConfig
from distributed_privrl.evaluation.method import Method
from distributed_privrl.methods.privorl.attack import (
    open_attack,
    open_likelihood_attack,
    open_trajectory_attack,
)
from distributed_privrl.methods.privorl.autoregressive import autoregressive_method
from distributed_privrl.methods.privorl.config import PrivorlArConfig, PrivorlNConfig
from distributed_privrl.methods.privorl.method import check_config
from distributed_privrl.methods.privorl.trajectories import (
    plan_trajectories,
    trajectories_method,
)
from distributed_privrl.methods.privorl.trajectory_config import (
    PrivorlArJConfig,
    PrivorlJConfig,
    PrivorlJUNetConfig,
)
from distributed_privrl.methods.privorl.transitions import plan_transitions, transitions_method


def privorl_n() -> Method:
    """Return the method ``privorl_n``."""
    return Method(
        config=PrivorlNConfig,
        plan=plan_transitions,
        declare=transitions_method,
        summary="private synthetic transitions from a diffusion model (PrivORL-n)",
        attack=open_attack,
        check=check_config,
        on_gpus=True,
    )


def privorl_ar() -> Method:
    """Return the method ``privorl_ar``."""
    return Method(
        config=PrivorlArConfig,
        plan=plan_transitions,
        declare=autoregressive_method,
        summary="private synthetic transitions from an autoregressive model (PrivORL-AR)",
        attack=open_likelihood_attack,
        check=check_config,
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


def _trajectories(config: type[RunConfig], model: str) -> Method:
    return Method(
        config=config,
        plan=plan_trajectories,
        declare=trajectories_method,
        summary=f"private synthetic trajectories from {model}",
        attack=open_trajectory_attack,
        whole_units=True,
        check=check_config,
        charged_before=lambda config: config.charged_before,
        on_gpus=True,
    )
