"""The server of noisy statistics: draws a program's releases step by step."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.round_server import RoundServer, RoundServerSpec


class Program(Protocol):
    """What a method does with its releases; lives in the server's process."""

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Gather the statistics of step ``index``, release them with noise, and use them.

        Args:
            index: 0 for the first step.
            workers: answer with raw statistics, which are gone when the call returns.
            noise: draws the noise; None without privacy.
            reserved: number of the step among all that the ledger ever reserved for the run, lost
                ones included; no two steps have the same, whatever they were resumed from. None
                without privacy.
        """
        ...

    def tensors(self) -> dict[str, Tensor]:
        """Return what a resume needs: released or public values alone."""
        ...

    def restore(self, tensors: dict[str, Tensor], steps_done: int) -> None:
        """Take up the state after ``steps_done`` steps."""
        ...


class ProgramFactory(Protocol):
    """Builds a program in the server's process; picklable, knows public facts alone."""

    def __call__(self) -> Program:
        """Return a fresh program."""
        ...


@dataclass(frozen=True, kw_only=True)
class ReleaseServerSpec(RoundServerSpec):
    """What a server of releases is built from, beside `RoundServerSpec`.

    Args:
        workers: hold the units.
        program: builds what happens in a step.
        private: whether noise is drawn; goes with the ledger.
    """

    workers: WorkerGroup
    program: ProgramFactory
    private: bool


class ReleaseServer(RoundServer):
    """Draws a method's releases, each charged before and saved after.

    Privacy: unit, relation and sensitivity are the program's, which states one event a release. A
    step whose noise was drawn and whose result is in no checkpoint is spent; a spare one is paid
    for in its place. Raw statistics stay in the workers' and this process.
    """

    def __init__(self, spec: ReleaseServerSpec) -> None:
        if spec.private != (spec.ledger is not None):
            raise UnsafeError("noise and ledger go together: what is drawn must be charged")
        self._spec = spec
        self._program = spec.program()
        super().__init__(spec)

    def _tensors(self) -> dict[str, Tensor]:
        return self._program.tensors()

    def _restore(self, tensors: dict[str, Tensor], rounds: int) -> None:
        self._program.restore(tensors, rounds)

    def _run_round(self) -> None:
        self._count_round()
        self._program.step(self._round, self._spec.workers, self._noise, self._reserved_round)
        self._round += 1
