"""Which relations of real rows synthetic ones keep."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from distributed_privrl.evaluation.judged import Judged

FAR_PAIR = 0.2
"""A relation is lost if its strength, in [-1, 1], is off by more than this beyond real samples."""
LEAST_RELATION, HALF = 0.1, 0.5
"""So is one of this strength of which less than this part is left,"""
CLEARLY = 3.0
"""if it is off by this many times more than any other real sample's."""


def is_lost(one: Judged) -> bool:
    """Say whether synthetic rows have lost a relation of the real ones."""
    return one.excess > FAR_PAIR or (_is_halved(one) and one.value > CLEARLY * one.highest)


def is_faded(one: Judged) -> bool:
    """Say whether less than half of a relation is left, and too little is known to call it lost.

    Rows are farther off than any other real sample, but not clearly: real samples of few units
    differ much themselves.
    """
    return _is_halved(one) and one.excess > 0 and not is_lost(one)


def _is_halved(one: Judged) -> bool:
    left = one.synthetic * np.sign(one.real)
    return bool(abs(one.real) >= LEAST_RELATION and left < HALF * abs(one.real))


@dataclass(frozen=True, kw_only=True)
class KeptRelations:
    """How many relations of real rows are kept.

    Args:
        kept: how many.
        relations: how many there are of `LEAST_RELATION` or more.
        lost: the names of those that are lost, the strongest first.
        faded: those of which less than half is left, though it is not clear; likewise.
    """

    kept: int
    relations: int
    lost: tuple[str, ...]
    faded: tuple[Judged, ...]


def kept_relations(pairs: Sequence[Judged]) -> KeptRelations:
    """Return which relations are kept, of those that are there.

    Args:
        pairs: associations of two columns.
    """
    there = sorted(
        (one for one in pairs if abs(one.real) >= LEAST_RELATION), key=lambda one: -abs(one.real)
    )
    lost = tuple(one.name for one in there if is_lost(one))
    faded = tuple(one for one in there if is_faded(one))
    return KeptRelations(
        kept=len(there) - len(lost) - len(faded), relations=len(there), lost=lost, faded=faded
    )
