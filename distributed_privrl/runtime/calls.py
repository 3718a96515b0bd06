"""What every call to Ray's actors shares: how arrays travel, and what their losses are."""

import sys
from typing import Any

import numpy as np

from distributed_privrl.core.errors import PrivRLError, WorkerLostError

# A larger shared array is put into the object store once instead of being sent to each worker.
INLINE_BYTES = 4 * 2**20
LOSSES_A_CALL = 5
"""How often a call may lose its process and be repeated."""


def losses() -> tuple[type[Exception], ...]:
    """Return what Ray raises where a process, its node or its answer was lost."""
    from ray import exceptions

    return (
        exceptions.RayActorError,
        exceptions.NodeDiedError,
        exceptions.ObjectLostError,
        exceptions.OutOfMemoryError,
        exceptions.WorkerCrashedError,
    )


def shareable(value: Any) -> Any:
    """Return an argument for many actors: a large array as a reference to it."""
    if isinstance(value, np.ndarray) and value.nbytes > INLINE_BYTES:
        import ray

        return ray.put(value)
    return value


def not_built(worker: str, error: Any) -> PrivRLError:
    """Return why a worker could not be built: our error as it is, others as a lost worker.

    Ray brings the text of an error that a constructor raised, and not the error.

    Args:
        worker: its name in the message.
        error: Ray's.
    """
    line = str(error).strip().splitlines()[-1]
    name, _, message = line.partition(": ")
    module, _, kind = name.rpartition(".")
    found = getattr(sys.modules.get(module), kind, None)
    if isinstance(found, type) and issubclass(found, PrivRLError):
        own = found.__new__(found)  # whatever else its constructor asks for is in the text
        own.args = (message,)
        return own
    return WorkerLostError(f"{worker} could not be built: {line}")


def own_error(error: Any) -> BaseException:
    """Return the error that the worker raised: ours as it is, others wrapped by Ray."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, PrivRLError):
        return cause
    derived: BaseException = error.as_instanceof_cause()
    return derived
