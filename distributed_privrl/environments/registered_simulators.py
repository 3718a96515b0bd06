"""Which environment has which simulator."""

from distributed_privrl.environments.cartpole import CARTPOLES
from distributed_privrl.environments.locomotion import Locomotion
from distributed_privrl.environments.pendulum import PENDULUM, Pendulum
from distributed_privrl.environments.simulators import Simulator


def simulator_of(environment: str) -> Simulator:
    """Return the simulator of a registered environment.

    Args:
        environment: Gymnasium id: Pendulum-v1, one of our cart-poles, or one of MuJoCo's whose
            observation is all positions but the first and all velocities.

    Raises:
        ConfigError: the environment has no simulator.
        MissingExtraError: mujoco is not installed, and the environment needs it.
    """
    if environment == PENDULUM:
        return Pendulum()
    if environment in CARTPOLES:
        return CARTPOLES[environment]
    return Locomotion(environment)
