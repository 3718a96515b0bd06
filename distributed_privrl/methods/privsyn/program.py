"""The server's part of `privsyn`: columns, differences of pairs, the pairs that they select.

Reference: PrivSyn, algorithm 4.
"""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.one_shot import check_paid, split, weighted
from distributed_privrl.marginals.plan import StepRelease
from distributed_privrl.marginals.table_program import DEVIATION, EXACT, ProgramSpec, TableProgram
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.methods.privsyn.consistency import consistent
from distributed_privrl.methods.privsyn.model import Marginals
from distributed_privrl.methods.privsyn.plan import difference_sensitivity
from distributed_privrl.methods.privsyn.selection import (
    FINEST_WEIGHT,
    dense_pairs,
    independent_difference,
    pairs_of,
    weights_of,
)
from distributed_privrl.privacy.noise import NoiseSource

_SCORES, _TABLES = "scores", "tables"


class PrivsynProgram(TableProgram[Marginals]):
    """Scores all pairs of columns, then measures those that noisy scores select.

    Privacy: unit and columns as `TableProgram`. Relation: the plan's. Sensitivities: of all scores
    `plan.difference_sensitivity`; of the pairs' counts, each times a whole weight, `FINEST_WEIGHT`
    times that of one, as the squares of weights add up to no more. Events: ``discrete_gaussian``,
    one a step. Which pairs are measured, with which weights, and all that follows, are decided by
    what was released. Where a crash lost the scores, all pairs are measured.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: ProgramSpec[Marginals]) -> None:
        super().__init__(spec)
        self._vectors: dict[str, tuple[NDArray[np.int64], float]] = {}

    @property
    def joint_deviation(self) -> float:
        """The deviation of a cell's noise if as many pairs were selected as there are columns."""
        releases = self._spec.plan.releases
        if not releases:
            return EXACT
        one = releases[-1].gaussian.standard_deviation / FINEST_WEIGHT
        return float(one * self._spec.columns.drawn**0.5)

    def _after_columns(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        place: int,
        tag: int,
    ) -> None:
        kind = _SCORES if place == 1 else _TABLES
        make = self._scores if place == 1 else self._tables
        vector = make(workers, release)
        if len(vector):
            self._vectors[kind] = self._released(vector, noise, release, tag=tag)
            if kind == _TABLES:
                self._tell_tables(step=place)

    @property
    def _pairs(self) -> list[Clique]:
        """The pairs that may be measured; needs columns that were released."""
        bins = self._belief.bins
        return pairs_of(bins.columns, bins.sizes, self._spec.most_cells)

    def _scores(self, workers: WorkerGroup, release: StepRelease | None) -> NDArray[np.int64]:
        """Return the difference of each pair, ``(m,)``: raw private data."""
        pairs = self._pairs
        if release is not None:
            needed = difference_sensitivity(self.relation, len(pairs))
            if needed > release.gaussian.sensitivity * (1 + 1e-12):
                raise UnsafeError(f"the plan pays for fewer than {len(pairs)} pairs of columns")
        exact = self._exact(workers, pairs)
        scores = [independent_difference(exact[one], self._unrelated(one)) for one in pairs]
        return np.array(scores, np.int64)

    def _unrelated(self, pair: Clique) -> NDArray[np.int64]:
        """Return the counts of a pair that has nothing to do with each other, by its columns."""
        bins = self._belief.bins
        one, other = (bins.margin(place).masses for place in pair)
        return np.rint(np.outer(one, other) / bins.total).astype(np.int64)

    def _tables(self, workers: WorkerGroup, release: StepRelease | None) -> NDArray[np.int64]:
        """Return the weighted counts of the pairs that are selected: raw private data."""
        pairs, weights = self._selected()
        if not pairs:
            return np.empty(0, np.int64)
        if release is not None:
            check_paid(release.gaussian, weights, self.relation)
        exact = self._exact(workers, pairs)
        return weighted([exact[one] for one in pairs], weights)

    def _selected(self) -> tuple[list[Clique], list[int]]:
        """Return the pairs that released scores select, and the weight of each; all without."""
        pairs, sizes = self._pairs, self._belief.bins.sizes
        if not pairs:
            return [], []
        cells = np.array([sizes[one] * sizes[other] for one, other in pairs], np.int64)
        chosen = list(range(len(pairs)))
        if _SCORES in self._vectors:
            releases = self._spec.plan.releases
            one = releases[-1].gaussian.standard_deviation / FINEST_WEIGHT if releases else EXACT
            scores, _ = self._vectors[_SCORES]
            chosen = dense_pairs(scores.astype(np.float64), cells, one)
        weights = weights_of(cells[chosen])
        kept = [(pairs[i], weight) for i, weight in zip(chosen, weights, strict=True) if weight]
        return [pair for pair, _ in kept], [weight for _, weight in kept]

    def _tell_tables(self, *, step: int) -> None:
        """Keep which pairs were released, each with the noise that its weight leaves."""
        sizes, (_, deviation) = self._belief.bins.sizes, self._vectors[_TABLES]
        for pair, weight in zip(*self._selected(), strict=True):
            parts = [sizes[i] for i in pair]
            self._tell(pair, parts, step=step, deviation=deviation / weight)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that was released: noisy integers, and their deviations."""
        tensors = super().tensors()
        for kind, (vector, deviation) in self._vectors.items():
            tensors[kind] = torch.from_numpy(vector.copy())
            tensors[f"{kind}.{DEVIATION}"] = torch.tensor(deviation, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what was released before a resume; see `Program.restore`."""
        super().restore(tensors, steps_done)
        for kind in (_SCORES, _TABLES):
            if kind in tensors:
                deviation = float(tensors[f"{kind}.{DEVIATION}"])
                self._vectors[kind] = tensors[kind].numpy().copy(), deviation

    def model(self, progress: Progress = silent) -> Marginals:
        """Return the marginals that rows are to have; see `TableProgram.model`."""
        self.check_released()
        self._know(progress)
        bins = self._belief.bins
        pairs: dict[Clique, NDArray[np.float64]] = {}
        deviations: dict[Clique, float] = {}
        if _TABLES in self._vectors:
            flat, deviation = self._vectors[_TABLES]
            cliques, weights = self._selected()
            counts = split(flat, cliques, bins.sizes)
            for clique, weight, noisy in zip(cliques, weights, counts, strict=True):
                pairs[clique], deviations[clique] = noisy / weight, deviation / weight
        margins = [bins.margin(place) for place in range(len(bins.shapes))]
        singles, agreed = consistent(margins, pairs, deviations, bins.total)
        return Marginals(bins.columns, bins.shapes, singles, agreed)
