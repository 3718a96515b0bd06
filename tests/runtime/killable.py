"""Workers and servers of rounds that tell their process ids, in a module that imports no more."""

import os

from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.rounds.worker import LocalUpdateWorker


class KillableWorker(LocalUpdateWorker):
    """A worker that tells its process id."""

    def pid(self) -> int:
        return os.getpid()


class KillableServer(ParameterServer):
    """A server that tells its process id."""

    def pid(self) -> int:
        return os.getpid()
