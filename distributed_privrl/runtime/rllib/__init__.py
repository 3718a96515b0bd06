"""Our agents as RLlib algorithms, and the bridge that brings released rows to them."""

from distributed_privrl.runtime.session import prepare_environment

prepare_environment()  # the modules here import Ray, which settles its authentication then
