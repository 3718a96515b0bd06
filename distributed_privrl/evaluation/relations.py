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
    if one.excess > FAR_PAIR:
        return True
    left = one.synthetic * np.sign(one.real)
    weak = abs(one.real) >= LEAST_RELATION and left < HALF * abs(one.real)
    return bool(weak and one.value > CLEARLY * one.highest)


@dataclass(frozen=True, kw_only=True)
class KeptRelations:
    """How many relations of real rows are kept.

    Args:
        kept: how many.
        relations: how many there are of `LEAST_RELATION` or more.
        lost: the names of the others, the strongest first.
    """

    kept: int
    relations: int
    lost: tuple[str, ...]


def kept_relations(pairs: Sequence[Judged]) -> KeptRelations:
    """Return which relations are kept, of those that are there.

    Args:
        pairs: associations of two columns.
    """
    there = [one for one in pairs if abs(one.real) >= LEAST_RELATION]
    lost = sorted((one for one in there if is_lost(one)), key=lambda one: -abs(one.real))
    return KeptRelations(
        kept=len(there) - len(lost),
        relations=len(there),
        lost=tuple(one.name for one in lost),
    )
