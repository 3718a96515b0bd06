"""The server of noisy statistics: draws a program's releases step by step."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.interrupts import held_back
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.round_server import RoundServer, RoundServerSpec


class Program(ABC):
    """What a method does with its releases; lives in the server's process."""

    def prepare(self, index: int) -> None:  # noqa: B027  nothing to prepare is the rule
        """Do public work for step ``index``, before the step is reserved.

        What takes long belongs here: a kill while it runs costs nothing, and one during `step`
        costs a reserved step. It is called again for the same step by whatever resumes the run.

        Privacy: it is given neither workers nor noise. It uses what steps released and public
        facts; what workers answered is gone by then.
        """

    @abstractmethod
    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Gather the statistics of step ``index``, and release them with noise.

        Args:
            index: 0 for the first step.
            workers: answer with raw statistics, which are gone when the call returns.
            noise: draws the noise; None without privacy.
            reserved: number of the step among all that the ledger ever reserved for the run, lost
                ones included; no two steps have the same, whatever they were resumed from. The
                step draws what this entry of its plan's schedule states. None without privacy.
        """

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """Return what a resume needs: released or public values alone."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up the state after ``steps_done`` steps."""


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
    """Draws a method's releases, each prepared and charged before and saved after.

    Privacy: unit, relation and sensitivity are the program's, which states one event a release. A
    step whose noise was drawn and whose result is in no checkpoint is spent, with its entry of the
    plan's schedule; a spare one is paid for in its place. Raw statistics stay in the workers' and
    this process.
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

    def _prepare_round(self) -> None:
        self._program.prepare(self._round)

    def _run_round(self) -> None:
        """Make a step whole: one that is interrupted between its draw and its end would be lost."""
        with held_back():
            self._count_round()
            self._program.step(self._round, self._spec.workers, self._noise, self._reserved_round)
            self._round += 1
