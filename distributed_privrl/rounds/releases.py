"""Runs of noisy statistics: a plan of releases, and the server that draws them step by step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.privacy.events import Event, repeated
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.plan import Plan
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
class ReleasePlan(Plan):
    """Steps that each release statistics of all units; no sampling.

    Args:
        steps: planned steps.
        spare: further steps that are paid for, so that a crash does not end the run.
        step_events: what one step releases; empty without privacy.
        assumed: what the guarantee assumes beside the noise source's own assumptions.
        about: what ``privrl plan`` shows; public facts.
        noise: the noise in words.
    """

    steps: int
    spare: int
    step_events: tuple[Event, ...] = ()
    assumed: tuple[str, ...] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    noise: str = ""

    @property
    def rounds(self) -> int:
        """Planned steps."""
        return self.steps

    @property
    def max_rounds(self) -> int:
        """Planned and spare steps: what the ledger holds."""
        return self.steps + self.spare

    @property
    def block_rounds(self) -> int:
        """Each step is reserved on its own."""
        return 1

    @property
    def clip_norm(self) -> float | None:
        """A step's statistics have sensitivities of their own."""
        return None

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee assumes beside the noise source's own assumptions."""
        return self.assumed

    def events(self, rounds: int) -> tuple[Event, ...]:
        """Return the events of ``rounds`` steps.

        Raises:
            ConfigError: the plan is not private.
        """
        if not self.step_events:
            raise ConfigError("privacy.epsilon is null: a run without privacy has no event")
        return tuple(repeated(event, rounds) for event in self.step_events)

    def facts(self) -> dict[str, Any]:
        """Return what ``privrl plan`` shows beside units, rounds and cost."""
        return {**self.about, **({"noise": self.noise} if self.noise else {})}

    def summary(self) -> str:
        """Return the plan's work in a few words, for one line."""
        return self.noise or "exact statistics"


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
