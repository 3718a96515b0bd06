"""The server's part of marginals: choices of joint counts, and their release.

A step of AIM, with a public schedule: candidates are scored by how wrong the model is about them,
the exponential mechanism chooses one, its count is released with Gaussian noise, and the rows that
stand for the model are weighted until they agree with it. So each choice knows the ones before it.
After some choices, private-PGM estimates the model anew.

Reference: McKenna, Mullins, Sheldon and Miklau 2022 (AIM), algorithm 2.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.correlations import (
    Correlations,
    Question,
    correlation_sensitivity,
    questions_of,
    released_correlations,
)
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.plan import StepRelease
from distributed_privrl.marginals.scores import score
from distributed_privrl.marginals.table_program import DEVIATION, EXACT, ProgramSpec, TableProgram
from distributed_privrl.marginals.tables import Clique, JointCount, ReleasedTable, blocks
from distributed_privrl.marginals.together import (
    CorrelatedColumns,
    correlated_columns,
    correlated_from_tensors,
    correlated_to_tensors,
)
from distributed_privrl.marginals.workload import in_turn
from distributed_privrl.privacy.noise import NoiseSource

_TABLE, _CLEANED, _CORRELATIONS = "table", "cleaned", "correlations"
_HIDDEN = 1.5
"""A cell that counts fewer deviations than this is lost in its noise."""


class MarginalsProgram(TableProgram[TableModel]):
    """Counts columns once, then chooses and counts columns together.

    Privacy: unit: what owns rows that weigh `UNIT_WEIGHT` together at most (`CountWorker`).
    Relation: the plan's. Sensitivities: `plan.integer_sensitivity` of each count,
    `plan.score_span` of all scores. Events: those of the entry of the plan's schedule that was
    reserved: ``discrete_gaussian`` for all columns, one more for correlations, if they are asked
    for (`correlation_sensitivity`), then ``bounded_range`` and ``discrete_gaussian`` for each
    choice. Bins, scores' expectations and models follow from
    released counts. Where crashes lost a step, its choices are not made, and the rest is as it was.
    Columns that the configuration asks for are counted without a choice, in place of one that is
    charged all the same: the events of the schedule are those of a run that asks for nothing.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: ProgramSpec[TableModel]) -> None:
        super().__init__(spec)
        self._correlations: tuple[NDArray[np.int64], float] | None = None
        self._related: list[CorrelatedColumns] = []

    @property
    def joint_deviation(self) -> float:
        """The deviation of a joint count's noise, of the least noisy step."""
        releases = [one for one in self._spec.plan.releases if one.tables is not None]
        return min((_deviation(one) for one in releases), default=EXACT)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that was released: noisy integers, their deviations, cleaned counts."""
        tensors = super().tensors()
        for place, table in enumerate(self._belief.tables):
            name = f"{_TABLE}.{place}.{table.parts}." + ".".join(map(str, table.clique))
            tensors[name] = torch.from_numpy(table.noisy.copy())
            tensors[f"{_CLEANED}.{place}"] = torch.from_numpy(table.cleaned.copy())
            tensors[f"{DEVIATION}.{place}"] = torch.tensor(table.deviation, dtype=torch.float64)
        if self._correlations is not None:
            sums, deviation = self._correlations
            tensors[_CORRELATIONS] = torch.from_numpy(sums.copy())
            tensors[f"{_CORRELATIONS}.{DEVIATION}"] = torch.tensor(deviation, dtype=torch.float64)
            tensors |= correlated_to_tensors(self._related)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what was released before a resume; see `Program.restore`."""
        super().restore(tensors, steps_done)
        found = {}
        for name, tensor in tensors.items():
            kind, *numbers = name.split(".")
            if kind == _TABLE:
                place, parts, *clique = map(int, numbers)
                found[place] = ReleasedTable(
                    tuple(clique),
                    parts,
                    tensor.numpy().copy(),
                    float(tensors[f"{DEVIATION}.{place}"]),
                    tensors[f"{_CLEANED}.{place}"].numpy().copy(),
                )
        self._belief.tables = [found[place] for place in sorted(found)]
        if _CORRELATIONS in tensors:
            deviation = float(tensors[f"{_CORRELATIONS}.{DEVIATION}"])
            self._correlations = tensors[_CORRELATIONS].numpy().copy(), deviation
            self._related = correlated_from_tensors(tensors)

    def model(self, progress: Progress = silent) -> TableModel:
        """Return the model that rows are drawn from; see `TableProgram.model`."""
        self.check_released()
        super()._know(progress)
        model = self._belief.model(progress)
        if self._correlations is None:
            return model
        return replace(model, correlations=self._found(*self._correlations))

    def _found(self, sums: NDArray[np.int64], deviation: float) -> Correlations:
        bins, tables = self._belief.bins, self._belief.tables
        return released_correlations(
            self._questions,
            sums,
            deviation,
            bins,
            cliques=[one.clique for one in tables],
        )

    def _know(self, progress: Progress = silent) -> None:
        """Estimate the model of all that was released, if that was not done yet."""
        super()._know(progress)
        self._belief.estimate(progress)

    def _after_columns(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        place: int,
        tag: int,
    ) -> None:
        if self._spec.plan.correlated and place == 1:
            self._correlate(workers, noise, release, tag=tag)
        else:
            self._choose(workers, noise, release, place, tag=tag)

    @property
    def _questions(self) -> tuple[Question, ...]:
        bins = self._belief.bins
        return questions_of(bins.columns, bins.shapes)

    def _correlate(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        tag: int,
    ) -> None:
        """Measure how every two columns of a row go together, and how what follows does.

        Privacy: sensitivity: `correlation_sensitivity` of the sums, at most of those that the plan
        pays for; event: ``discrete_gaussian``.
        """
        questions = self._questions
        bins = [shape.bins for shape in self._belief.bins.shapes]
        answers = workers.call("correlations", {"bins": bins, "questions": questions})
        sums = np.asarray(np.sum(answers, axis=0, dtype=np.int64))
        if release is not None:
            self._check_correlations_paid(len(sums), release)
        if not len(sums):  # noise leaves questions to one column at most: nothing is drawn
            return
        self._correlations = self._released(sums, noise, release, tag=tag)
        known = self._belief.bins
        found = self._found(*self._correlations)
        self._related = correlated_columns(known.columns, known.shapes, found)

    def _check_correlations_paid(self, sums: int, release: StepRelease) -> None:
        """Refuse a plan that was drawn up for fewer sums, or for less of what a unit moves."""
        assert release.vector is not None
        needed = correlation_sensitivity(self.relation, sums)
        if sums > self._spec.plan.correlated or release.vector.sensitivity < needed * (1 - 1e-12):
            raise UnsafeError(
                f"the plan pays for {self._spec.plan.correlated} sums of answers and a sensitivity"
                f" of {release.vector.sensitivity:.6g}, and {sums} with {needed:.6g} would be"
                " measured: the columns are not those that it was drawn up for"
            )

    def _choose(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        step: int,
        *,
        tag: int,
    ) -> None:
        """Choose joint counts one after the other, each with what the ones before it said.

        What was asked for comes first, and is not chosen: what the plan charges for the choice is
        charged, and not drawn.
        """
        spec, belief = self._spec, self._belief
        exact = self._exact(workers, sorted({one.clique for one in belief.worth_counting()}))
        deviation = EXACT if release is None else _deviation(release)
        for number in range(spec.plan.counts[step - 1]):
            open_ = [one for one in belief.worth_counting() if one.clique in exact]
            open_ = belief.small_enough(open_)
            if not open_:
                return
            asked = belief.asked(open_)
            if asked is not None:
                chosen, counts = asked, blocks(exact[asked.clique], belief.bins.maps(asked))
            else:
                open_ = in_turn(spec.columns, open_, len(belief.tables))
                chosen, counts = self._chosen(open_, exact, noise, release, tag=tag + number)
            noisy = counts
            if noise is not None and release is not None:
                assert release.tables is not None
                noisy = release.tables.release(counts.reshape(-1), noise, tag=tag + number)
                noisy = noisy.reshape(counts.shape)
            belief.take(chosen, noisy, deviation)
            self._tell(chosen.clique, noisy.shape, step=step, deviation=deviation)

    def _chosen(
        self,
        open_: Sequence[JointCount],
        exact: Mapping[Clique, NDArray[np.int64]],
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        tag: int,
    ) -> tuple[JointCount, NDArray[np.int64]]:
        """Return the joint count that the model is most wrong about, as noise has it; exactly.

        Args:
            open_: those that are worth counting.
            exact: counts of their columns in bins.
            noise: draws the choice; None without privacy.
            release: that pays for it; None without privacy.
            tag: of the draw.
        """
        belief, spec = self._belief, self._spec
        deviation = EXACT if release is None else _deviation(release)
        counts = [blocks(exact[one.clique], belief.bins.maps(one)) for one in open_]
        expected = {clique: belief.expected(clique) for clique in {one.clique for one in open_}}
        scores = [
            score(
                own,
                np.rint(blocks(expected[one.clique], belief.bins.maps(one))).astype(np.int64),
                noise=round(_HIDDEN * deviation),
                weight=belief.candidates.weight(one),
                ordered=belief.bins.ordered(one.clique),
            )
            for one, own in zip(open_, counts, strict=True)
        ]
        if noise is None or release is None:
            place = int(np.argmax(scores))
        else:
            assert release.choices is not None
            place = release.choices.choose(scores, spec.chooser, tag=tag)
        return open_[place], counts[place]


def _deviation(release: StepRelease) -> float:
    assert release.tables is not None
    return release.tables.standard_deviation
