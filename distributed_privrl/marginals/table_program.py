"""The server's part of a table: columns first, what follows from them, and what is kept.

A program counts all columns in its first step. Which bins numbers have in joint counts follows from
what was released of them; what later steps release, each program says.
"""

import hashlib
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import SpentError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.belief import Belief, TableFacts
from distributed_privrl.marginals.correlations import RULES as ASKED
from distributed_privrl.marginals.levels import WEIGHT
from distributed_privrl.marginals.plan import MarginalsPlan, StepRelease, integer_sensitivity
from distributed_privrl.marginals.shapes import ATOM, PEAK
from distributed_privrl.marginals.tables import CUTS, Clique
from distributed_privrl.marginals.together import (
    CountedTogether,
    counted_together,
    from_tensors,
    to_tensors,
)
from distributed_privrl.privacy.choosing import Chooser
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.releases import Program

ModelT = TypeVar("ModelT")
COLUMNS, DEVIATION = "columns", "deviation"
EXACT = 0.02 * UNIT_WEIGHT
"""Without privacy, counts are taken to be as exact as this."""
_DIGEST = "digest"
_TAGS = 10_000
_RULES = 13
"""Of what follows from counts: bins, parts, candidates, estimates. Another number is another
version.
"""
_WHOLE: dict[str, Any] = {
    "threshold": sys.maxsize,
    "precision": 17,
    "floatmode": "unique",
    "suppress": False,
    "linewidth": 75,
    "sign": "-",
    "nanstr": "nan",
    "infstr": "inf",
    "formatter": None,
    "legacy": False,
}
"""Arrays in full, however a program prints its own."""


@dataclass(frozen=True, kw_only=True)
class ProgramSpec(TableFacts, Generic[ModelT]):
    """What a program is built from: public facts of the table, and who chooses.

    Args:
        plan: what each step draws.
        chooser: draws the choices.
        program: builds the program of such facts.
        weighed: caps on a unit's rows: what a count is of.
    """

    plan: MarginalsPlan
    chooser: Chooser
    program: Callable[["ProgramSpec[ModelT]"], "TableProgram[ModelT]"]
    weighed: tuple[int | None, ...] = ()

    def __call__(self) -> "TableProgram[ModelT]":
        """Return a fresh program."""
        return self.program(self)


class TableProgram(Program, Generic[ModelT]):
    """Counts columns once, then releases what a subclass says.

    Privacy: unit: what owns rows that weigh `UNIT_WEIGHT` together at most (`CountWorker`).
    Relation: the plan's. Sensitivity of all columns: sqrt(histograms) times
    `plan.integer_sensitivity`; event ``discrete_gaussian``. Bins follow from released counts. Each
    step draws what its entry of the plan's schedule states; where crashes lost the columns' step,
    the next one's noise counts them, and what it would have released is not.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: ProgramSpec[ModelT]) -> None:
        self._spec = spec
        planned = sum(spec.plan.counts)
        self._belief = Belief(spec, joint_deviation=self.joint_deviation, planned=planned)
        self._noisy_columns: tuple[NDArray[np.int64], float] | None = None
        self._together: list[CountedTogether] | None = []

    @property
    @abstractmethod
    def joint_deviation(self) -> float:
        """The deviation of a joint count's noise, by which bins are found."""

    @abstractmethod
    def model(self, progress: Progress = silent) -> ModelT:
        """Return the model of all that was released.

        Args:
            progress: told where the estimate stands.

        Raises:
            SpentError: see `check_released`.
        """

    def prepare(self, index: int) -> None:
        """Estimate the model of all that was released before step ``index``."""
        if self._noisy_columns is not None:
            self._know()

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Count the columns, or release what comes after them: see `Program.step`."""
        plan = self._spec.plan
        place = index if reserved is None else reserved
        release = plan.releases[place] if noise is not None else None
        if self._noisy_columns is None:
            self._count_columns(workers, noise, release, tag=place * _TAGS)
            return
        self._know()
        self._after_columns(workers, noise, release, place=place, tag=place * _TAGS)

    @abstractmethod
    def _after_columns(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        place: int,
        tag: int,
    ) -> None:
        """Release what a later step does.

        Args:
            workers: hold the rows.
            noise: draws the noise; None without privacy.
            release: that the step's entry pays for; None without privacy.
            place: of the entry among the plan's steps, 1 or more.
            tag: of the first draw.
        """

    def tensors(self) -> dict[str, Tensor]:
        """Return all that was released: noisy integers, their deviation, what was counted."""
        tensors: dict[str, Tensor] = {_DIGEST: self._digest, **to_tensors(self._together)}
        if self._noisy_columns is not None:
            counts, deviation = self._noisy_columns
            tensors[COLUMNS] = torch.from_numpy(counts.copy())
            tensors[f"{COLUMNS}.{DEVIATION}"] = torch.tensor(deviation, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what was released before a resume; see `Program.restore`."""
        if not torch.equal(tensors[_DIGEST], self._digest):
            raise UnsafeError(
                "bounds, spaces, settings or the version of the program are not those that the"
                " counts were made with: bring them back, or start a new run"
            )
        self._together = from_tensors(tensors)
        if COLUMNS in tensors:
            deviation = float(tensors[f"{COLUMNS}.{DEVIATION}"])
            self._noisy_columns = tensors[COLUMNS].numpy().copy(), deviation

    def _tell(self, clique: Clique, parts: Sequence[int], *, step: int, deviation: float) -> None:
        """Keep which columns a joint count is of, for reports; see `CountedTogether`."""
        if self._together is not None:
            columns = self._belief.bins.columns
            told = counted_together(columns, clique, parts, step=step, deviation=deviation)
            self._together.append(told)

    @property
    def _digest(self) -> Tensor:
        """Says what counts mean: columns, cells, weights, settings of bins, parts, public rows."""
        spec = self._spec
        sizes = (spec.most_bins, spec.most_cells, spec.model_cells, spec.row_cells, spec.rows)
        classes = spec.columns.unit_sizes
        starts = None if classes is None else classes.starts.tolist()
        facts: tuple[Any, ...] = (
            spec.columns,
            spec.seed,
            sizes,
            spec.given,
            spec.asked,
            spec.weighed,
            starts,
            CUTS,
            ATOM,
            PEAK,
            WEIGHT,
            _RULES,
        )
        if spec.plan.correlated:
            facts = (*facts, ASKED)
        with np.printoptions(**_WHOLE):
            digest = hashlib.sha256(repr(facts).encode())
        digest.update(self._belief.public_cells.tobytes())
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)

    def check_released(self) -> None:
        """Check that there is something to be drawn from.

        Raises:
            SpentError: crashes used up the step that counts the columns, and all others.
        """
        if self._noisy_columns is None:
            raise SpentError(
                "crashes used up all steps before anything was released: start a new run"
            )

    def _know(self, progress: Progress = silent) -> None:
        """Find out what follows from what was released, if that was not done yet."""
        assert self._noisy_columns is not None
        if not self._belief.shaped:
            self._belief.shape(*self._noisy_columns)

    def _count_columns(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        tag: int,
    ) -> None:
        first = self._spec.plan.releases[0].columns if self._spec.plan.releases else None
        if first is not None:
            self._check_paid(first)
        total = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        if noise is None or release is None:
            self._noisy_columns = total, EXACT
            return
        drawn = release.columns
        if drawn is None:  # the first step was lost in a crash: this one's noise counts columns
            assert first is not None
            drawn = IntegerGaussianRelease(
                sensitivity=first.sensitivity,
                noise_multiplier=release.gaussian.noise_multiplier,
            )
        noisy = drawn.release(total, noise, tag=tag)
        self._noisy_columns = noisy, drawn.standard_deviation

    def _check_paid(self, release: IntegerGaussianRelease) -> None:
        """Refuse a plan that was drawn up for fewer histograms than are counted."""
        columns = self._spec.columns
        needed = integer_sensitivity(self.relation) * columns.histograms**0.5
        if release.sensitivity < needed * (1 - 1e-12):
            raise UnsafeError(
                f"the plan pays for a sensitivity of {release.sensitivity:.6g}, the columns have"
                f" {needed:.6g}: they are not those that it was drawn up for"
            )

    @property
    def relation(self) -> Relation:
        """What neighbouring datasets are, of a run with privacy."""
        budget = self._spec.plan.budget
        assert budget is not None
        return budget.relation

    def _released(
        self,
        vector: NDArray[np.int64],
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        tag: int,
    ) -> tuple[NDArray[np.int64], float]:
        """Return a vector of integers ``(N,)`` with its step's noise, and the noise's deviation.

        Privacy: sensitivity: the caller's, at most that of the step's ``vector``; its event.
        """
        if noise is None or release is None:
            return vector, EXACT
        assert release.vector is not None
        noisy = release.vector.release(vector, noise, tag=tag)
        return noisy, release.vector.standard_deviation

    def _exact(
        self, workers: WorkerGroup, cliques: Sequence[Clique]
    ) -> dict[Clique, NDArray[np.int64]]:
        """Return the exact joint counts over all workers: raw private data."""
        bins = [shape.bins for shape in self._belief.bins.shapes]
        answers = workers.call("tables", {"bins": bins, "cliques": list(cliques)})
        return {
            clique: np.sum([answer[i] for answer in answers], axis=0, dtype=np.int64)
            for i, clique in enumerate(cliques)
        }
