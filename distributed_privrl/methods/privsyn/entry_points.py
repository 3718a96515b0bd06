"""What the tool sees of `privsyn`: the entry point's function.

Naming the method, and planning a run of it, imports no torch.
"""

from distributed_privrl.evaluation.method import Method
from distributed_privrl.methods.privsyn.config import PrivsynConfig
from distributed_privrl.methods.privsyn.method import PrivsynMethod


def privsyn() -> Method:
    """Return the method ``privsyn``."""
    return Method(
        config=PrivsynConfig,
        declare=PrivsynMethod,
        summary="private synthetic transitions by PrivSyn: noisy pairs of columns, adjusted rows",
        cpus_because="its workers only add up integers, which is no work for a GPU",
    )
