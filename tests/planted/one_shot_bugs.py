"""Bugs in marginals that are measured at once: what a unit weighs, and what is not charged."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from distributed_privrl.marginals.table_program import TableProgram
from distributed_privrl.methods.pgm import plan as pgm_plan
from distributed_privrl.methods.pgm.program import PgmProgram
from distributed_privrl.methods.privsyn import plan as privsyn_plan
from distributed_privrl.methods.privsyn import program as privsyn_program
from distributed_privrl.methods.privsyn.program import PrivsynProgram

Plant = Callable[[pytest.MonkeyPatch], None]


def a_marginal_for_nothing(patch: pytest.MonkeyPatch) -> None:
    """A joint count is measured beside those that the plan names, by a draw of its own."""
    right = PgmProgram._after_columns

    def measured(
        self: Any, workers: Any, noise: Any, release: Any, *, place: int, tag: int
    ) -> None:
        right(self, workers, noise, release, place=place, tag=tag)
        ((_, flat),) = self._exact(workers, [(0, 1)]).items()
        release.vector.release(flat.reshape(-1), noise, tag=tag + 1)

    patch.setattr(PgmProgram, "_after_columns", measured)


def one_marginal_pays_for_all(patch: pytest.MonkeyPatch) -> None:
    """Joint counts together have the sensitivity of one of them."""
    patch.setattr(pgm_plan, "Vector", _charged_for_one(pgm_plan.Vector))
    patch.setattr("distributed_privrl.methods.pgm.program.check_paid", lambda *_: None)


def _charged_for_one(vector: Any) -> Any:
    def made(*, sensitivity: float, share: float, count: int = 0) -> Any:
        return vector(sensitivity=sensitivity / max(count, 1) ** 0.5, share=share, count=count)

    return made


def marginals_by_the_rows(patch: pytest.MonkeyPatch) -> None:
    """The joint counts with the heaviest cells are measured, at no cost."""
    right = TableProgram._exact

    def heaviest(self: Any, workers: Any, cliques: Any) -> Any:
        if not isinstance(self, PgmProgram):
            return right(self, workers, cliques)
        pairs = [(i, j) for i in range(4) for j in range(i + 1, 4)]
        weighed = right(self, workers, pairs)
        order = sorted(pairs, key=lambda pair: (-int(weighed[pair].max()), weighed[pair].size))
        right(self, workers, order[: 1 + int(weighed[order[0]].argmax() > 0)])
        return right(self, workers, cliques)

    patch.setattr(TableProgram, "_exact", heaviest)


def exact_scores_select(patch: pytest.MonkeyPatch) -> None:
    """Noise is drawn for the scores, and their exact values select the pairs."""
    right = PrivsynProgram._after_columns

    def exact(self: Any, workers: Any, noise: Any, release: Any, *, place: int, tag: int) -> None:
        right(self, workers, noise, release, place=place, tag=tag)
        if place == 1:
            kept = self._scores(workers, release) * (1 + np.arange(len(self._pairs)) % 3)
            self._vectors["scores"] = kept, self._vectors["scores"][1]

    patch.setattr(PrivsynProgram, "_after_columns", exact)


def scores_pay_as_one(patch: pytest.MonkeyPatch) -> None:
    """All scores together are charged as one of them."""
    right = privsyn_plan.difference_sensitivity

    def one(relation: Any, pairs: int) -> float:
        return right(relation, 1)

    patch.setattr(privsyn_plan, "difference_sensitivity", one)
    patch.setattr(privsyn_program, "difference_sensitivity", one)


def selection_without_its_step(patch: pytest.MonkeyPatch) -> None:
    """Scores are released in the step that pays for the pairs, by a draw that nobody charges."""
    right = PrivsynProgram._after_columns

    def measured(
        self: Any, workers: Any, noise: Any, release: Any, *, place: int, tag: int
    ) -> None:
        right(self, workers, noise, release, place=place, tag=tag)
        if place == 2:
            again = self._scores(workers, None)
            release.vector.release(again, noise, tag=tag + 1)

    patch.setattr(PrivsynProgram, "_after_columns", measured)


def weights_above_their_sum(patch: pytest.MonkeyPatch) -> None:
    """Each pair has the weight of one that has all of the budget."""
    right = privsyn_program.weights_of
    patch.setattr(
        privsyn_program,
        "weights_of",
        lambda cells: [privsyn_program.FINEST_WEIGHT] * len(right(cells)),
    )
    patch.setattr(privsyn_program, "check_paid", lambda *_: None)


def bins_from_exact_counts(patch: pytest.MonkeyPatch) -> None:
    """Bins are found from what workers answered, and not from what was released."""
    right = TableProgram._count_columns

    def count(self: Any, workers: Any, noise: Any, release: Any, *, tag: int) -> None:
        right(self, workers, noise, release, tag=tag)
        exact = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        self._belief.shape(exact, self._noisy_columns[1])

    patch.setattr(TableProgram, "_count_columns", count)
