"""Actors that find the files of a run in an object store, on whichever machine they are built."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.data.stored_folders import arrive


def arriving(worker_cls: type, copies: Sequence[Path]) -> type:
    """Return a class of the same workers, which open working copies before they are built.

    What is built, or built again, reads the run's files as they were published last: a server its
    checkpoint, a sampler the model. What it writes itself it publishes.

    Args:
        worker_cls: a plain class.
        copies: the working copies of the process that starts the workers; none changes nothing.
    """
    if not copies:
        return worker_cls

    def begin(worker: Any, *given: Any) -> None:
        for copy in copies:
            arrive(copy)
        super(made, worker).__init__(*given)

    own = {"__init__": begin, "__module__": __name__}
    made: type[Any] = type(worker_cls.__name__, (worker_cls,), own)
    return made
