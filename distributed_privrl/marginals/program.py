"""The server's part of marginals: counts of columns, choices of joint counts, their release.

A step of AIM, with a public schedule: candidates are scored by how wrong the model is about them,
the exponential mechanism chooses one, its count is released with Gaussian noise, and the rows that
stand for the model are weighted until they agree with it. So each choice knows the ones before it.
After some choices, private-PGM estimates the model anew.

Reference: McKenna, Mullins, Sheldon and Miklau 2022 (AIM), algorithm 2.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.belief import Belief, ReleasedTable, TableFacts
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import MarginalsPlan, StepRelease, integer_sensitivity
from distributed_privrl.marginals.scores import score
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.marginals.workload import in_turn
from distributed_privrl.privacy.choosing import Chooser
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.rounds.releases import Program

_COLUMNS, _TABLE, _CLEANED, _DEVIATION = "columns", "table", "cleaned", "deviation"
_DIGEST = "digest"
_EXACT = 0.02 * UNIT_WEIGHT
"""Without privacy, counts are taken to be as exact as this."""
_HIDDEN = 1.5
"""A cell that counts fewer deviations than this is lost in its noise."""
_TAGS = 10_000


@dataclass(frozen=True, kw_only=True)
class ProgramSpec(TableFacts):
    """What a program is built from: public facts of the table, and who chooses.

    Args:
        plan: what each step draws.
        chooser: draws the choices.
        weighed: caps on a unit's rows, and whether last rows are copies: what a count is of.
    """

    plan: MarginalsPlan
    chooser: Chooser
    weighed: tuple[int | bool | None, ...] = ()

    def __call__(self) -> "MarginalsProgram":
        """Return a fresh program."""
        return MarginalsProgram(self)

    @property
    def joint_deviation(self) -> float:
        """The deviation of a joint count's noise, of the least noisy step."""
        releases = [one for one in self.plan.releases if one.tables is not None]
        return min((_deviation(one) for one in releases), default=_EXACT)


class MarginalsProgram(Program):
    """Counts columns once, then chooses and counts columns together.

    Privacy: unit: what owns rows that weigh `UNIT_WEIGHT` together at most (`CountWorker`).
    Relation: the plan's. Sensitivities: `plan.integer_sensitivity` of each count,
    `plan.score_span` of all scores. Events: those of the entry of the plan's schedule that was
    reserved: ``discrete_gaussian`` for all columns, then ``bounded_range`` and
    ``discrete_gaussian`` for each choice. Bins, scores' expectations and models follow from
    released counts. Where crashes lost a step, its choices are not made, and the rest is as it was.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: ProgramSpec) -> None:
        self._spec = spec
        planned = sum(spec.plan.counts)
        self._belief = Belief(spec, joint_deviation=spec.joint_deviation, planned=planned)
        self._noisy_columns: tuple[NDArray[np.int64], float] | None = None

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
        """Count the columns, or choose joint counts and count them: see `Program.step`."""
        plan = self._spec.plan
        place = index if reserved is None else reserved
        release = plan.releases[place] if noise is not None else None
        if self._noisy_columns is None:
            self._count_columns(workers, noise, release, tag=place * _TAGS)
            return
        self._know()
        count = plan.counts[place - 1]
        self._choose(workers, noise, release, count, tag=place * _TAGS)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that was released: noisy integers, their deviations, cleaned counts."""
        tensors: dict[str, Tensor] = {_DIGEST: self._digest}
        if self._noisy_columns is not None:
            counts, deviation = self._noisy_columns
            tensors[_COLUMNS] = torch.from_numpy(counts.copy())
            tensors[f"{_COLUMNS}.{_DEVIATION}"] = torch.tensor(deviation, dtype=torch.float64)
        for place, table in enumerate(self._belief.tables):
            name = f"{_TABLE}.{place}." + ".".join(map(str, table.clique))
            tensors[name] = torch.from_numpy(table.noisy.copy())
            tensors[f"{_CLEANED}.{place}"] = torch.from_numpy(table.cleaned.copy())
            tensors[f"{_DEVIATION}.{place}"] = torch.tensor(table.deviation, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what was released before a resume; see `Program.restore`."""
        if not torch.equal(tensors[_DIGEST], self._digest):
            raise UnsafeError(
                "bounds, spaces or settings are not those that the counts were made with: bring"
                " them back, or start a new run"
            )
        if _COLUMNS in tensors:
            deviation = float(tensors[f"{_COLUMNS}.{_DEVIATION}"])
            self._noisy_columns = tensors[_COLUMNS].numpy().copy(), deviation
        found = {}
        for name, tensor in tensors.items():
            kind, *numbers = name.split(".")
            if kind == _TABLE:
                place, *clique = map(int, numbers)
                found[place] = ReleasedTable(
                    tuple(clique),
                    tensor.numpy().copy(),
                    float(tensors[f"{_DEVIATION}.{place}"]),
                    tensors[f"{_CLEANED}.{place}"].numpy().copy(),
                )
        self._belief.tables = [found[place] for place in sorted(found)]

    @property
    def _digest(self) -> Tensor:
        """Says what the counts mean: columns, cells, weights, settings of bins, public rows."""
        spec = self._spec
        sizes = (spec.most_bins, spec.most_cells, spec.model_cells, spec.row_cells, spec.rows)
        classes = spec.columns.unit_sizes
        starts = None if classes is None else classes.starts.tolist()
        facts = repr((spec.columns, spec.seed, sizes, spec.given, spec.weighed, starts)).encode()
        digest = hashlib.sha256(facts)
        digest.update(self._belief.public_cells.tobytes())
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)

    def model(self, progress: Progress = silent) -> TableModel:
        """Return the model of all that was released.

        Args:
            progress: told where the estimate stands.

        Raises:
            BudgetError: crashes used up the step that counts the columns, and all others.
        """
        if self._noisy_columns is None:
            raise BudgetError(
                "crashes used up all steps before anything was released: start a new run"
            )
        self._know(progress)
        return self._belief.model(self._lengths())

    def _know(self, progress: Progress = silent) -> None:
        """Estimate the model of all that was released, if that was not done yet."""
        assert self._noisy_columns is not None
        if not self._belief.shapes:
            self._belief.shape(*self._noisy_columns)
        self._belief.estimate(progress)

    def _lengths(self) -> NDArray[np.float64]:
        """Return the weight of trajectories by the group of their last step, at least zero."""
        assert self._noisy_columns is not None
        counts, _ = self._noisy_columns
        return np.maximum(counts[len(counts) - self._spec.columns.lengths :], 0).astype(np.float64)

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
            self._noisy_columns = total, _EXACT
            return
        drawn = release.columns
        if drawn is None:  # the first step was lost in a crash: this one's noise counts columns
            assert release.tables is not None
            assert first is not None
            drawn = IntegerGaussianRelease(
                sensitivity=first.sensitivity, noise_multiplier=release.tables.noise_multiplier
            )
        noisy = drawn.release(total, noise, tag=tag)
        self._noisy_columns = noisy, drawn.standard_deviation

    def _check_paid(self, release: IntegerGaussianRelease) -> None:
        """Refuse a plan that was drawn up for fewer histograms than are counted."""
        budget, columns = self._spec.plan.budget, self._spec.columns
        assert budget is not None
        needed = integer_sensitivity(budget.relation) * columns.histograms**0.5
        if release.sensitivity < needed * (1 - 1e-12):
            raise UnsafeError(
                f"the plan pays for a sensitivity of {release.sensitivity:.6g}, the columns have"
                f" {needed:.6g}: they are not those that it was drawn up for"
            )

    def _choose(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        count: int,
        *,
        tag: int,
    ) -> None:
        """Choose joint counts one after the other, each with what the ones before it said."""
        spec, belief = self._spec, self._belief
        weights = belief.candidates
        cliques = [one for one in weights if belief.worth_counting(one)]
        exact = self._exact(workers, cliques)
        deviation = _EXACT if release is None else _deviation(release)
        for number in range(count):
            open_ = [one for one in cliques if belief.worth_counting(one)]
            if not open_:
                return
            open_ = belief.small_enough(open_)
            open_ = in_turn(spec.columns, open_, len(belief.tables))
            scores = [
                score(
                    exact[one],
                    np.rint(belief.expected(one)).astype(np.int64),
                    noise=round(_HIDDEN * deviation),
                    weight=weights[one],
                    ordered=belief.ordered(one),
                )
                for one in open_
            ]
            if noise is None or release is None:
                chosen = open_[int(np.argmax(scores))]
                noisy = exact[chosen]
            else:
                assert release.choices is not None
                assert release.tables is not None
                place = release.choices.choose(scores, spec.chooser, tag=tag + number)
                chosen = open_[place]
                flat = exact[chosen].reshape(-1)
                noisy = release.tables.release(flat, noise, tag=tag + number)
                noisy = noisy.reshape(exact[chosen].shape)
            belief.take(chosen, noisy, deviation)

    def _exact(
        self, workers: WorkerGroup, cliques: Sequence[Clique]
    ) -> dict[Clique, NDArray[np.int64]]:
        """Return the exact joint counts over all workers: raw private data."""
        bins = [shape.bins for shape in self._belief.shapes]
        answers = workers.call("tables", {"bins": bins, "cliques": list(cliques)})
        return {
            clique: np.sum([answer[i] for answer in answers], axis=0, dtype=np.int64)
            for i, clique in enumerate(cliques)
        }


def _deviation(release: StepRelease) -> float:
    assert release.tables is not None
    return release.tables.standard_deviation
