"""The server's part of `pgm`: columns, then one vector of joint counts, then private-PGM."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.one_shot import check_paid, resolved, split, weighted
from distributed_privrl.marginals.plan import StepRelease
from distributed_privrl.marginals.table_program import DEVIATION, EXACT, ProgramSpec, TableProgram
from distributed_privrl.marginals.tables import Clique, JointCount
from distributed_privrl.privacy.noise import NoiseSource

_TABLES = "tables"


class PgmProgram(TableProgram[TableModel]):
    """Measures the joint counts that its plan names, all at once.

    Privacy: unit and columns as `TableProgram`. Relation: the plan's. Sensitivity: that of k joint
    counts, sqrt(k) times `plan.integer_sensitivity`; event ``discrete_gaussian``. Which joint
    counts they are, the plan says, from public facts alone. Cleaning and the model follow from what
    was released.

    Args:
        spec: public facts.
    """

    def __init__(self, spec: ProgramSpec[TableModel]) -> None:
        super().__init__(spec)
        self._noisy_tables: tuple[NDArray[np.int64], float] | None = None

    @property
    def joint_deviation(self) -> float:
        """The deviation of a joint count's noise."""
        releases = self._spec.plan.releases
        return releases[-1].gaussian.standard_deviation if releases else EXACT

    @property
    def _cliques(self) -> list[Clique]:
        """The joint counts that are measured; needs columns that were released."""
        return resolved(self._spec.plan.cliques, self._belief.bins.columns)

    def _after_columns(
        self,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        release: StepRelease | None,
        *,
        place: int,
        tag: int,
    ) -> None:
        cliques = self._cliques
        if not cliques:
            return
        exact, ones = self._exact(workers, cliques), [1] * len(cliques)
        if release is not None:
            check_paid(release.gaussian, ones, self.relation)
        vector = weighted([exact[one] for one in cliques], ones)
        self._noisy_tables = self._released(vector, noise, release, tag=tag)
        deviation, sizes = self._noisy_tables[1], self._belief.bins.sizes
        for clique in cliques:
            self._tell(clique, [sizes[i] for i in clique], step=place, deviation=deviation)

    def tensors(self) -> dict[str, Tensor]:
        """Return all that was released: noisy integers, and their deviations."""
        tensors = super().tensors()
        if self._noisy_tables is not None:
            counts, deviation = self._noisy_tables
            tensors[_TABLES] = torch.from_numpy(counts.copy())
            tensors[f"{_TABLES}.{DEVIATION}"] = torch.tensor(deviation, dtype=torch.float64)
        return tensors

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what was released before a resume; see `Program.restore`."""
        super().restore(tensors, steps_done)
        if _TABLES in tensors:
            deviation = float(tensors[f"{_TABLES}.{DEVIATION}"])
            self._noisy_tables = tensors[_TABLES].numpy().copy(), deviation

    def _know(self, progress: Progress = silent) -> None:
        """Clean what was released, if that was not done yet."""
        super()._know(progress)
        belief = self._belief
        if self._noisy_tables is not None and not belief.tables:
            belief.estimate()  # of columns alone: what joint counts are first cleaned by
            counts, deviation = self._noisy_tables
            cliques = self._cliques
            for clique, noisy in zip(
                cliques, split(counts, cliques, belief.bins.sizes), strict=True
            ):
                belief.take(JointCount(clique), noisy, deviation)

    def model(self, progress: Progress = silent) -> TableModel:
        """Return the model that rows are drawn from; see `TableProgram.model`."""
        self.check_released()
        self._know(progress)
        return self._belief.model(progress)
