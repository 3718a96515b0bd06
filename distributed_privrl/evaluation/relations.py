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
LEAST_WEAK = 0.03
"""Weaker relations count from this strength, if it is `CLEARLY` more than real samples differ."""


def is_lost(one: Judged) -> bool:
    """Say whether synthetic rows have lost a relation of the real ones."""
    return _is_off(one) if abs(one.real) >= LEAST_RELATION else one.excess > FAR_PAIR


def _is_off(one: Judged) -> bool:
    """Say whether rows are far off, or have clearly less than half of a relation."""
    halved = _has_less_than_half(one)
    return one.excess > FAR_PAIR or (halved and one.value > CLEARLY * one.highest)


def _has_less_than_half(one: Judged) -> bool:
    return bool(one.synthetic * np.sign(one.real) < HALF * abs(one.real))


def _is_weak(one: Judged) -> bool:
    """Say whether a relation is weak, and clear beside how much real samples differ."""
    return LEAST_WEAK <= abs(one.real) < LEAST_RELATION and abs(one.real) > CLEARLY * one.highest


@dataclass(frozen=True, kw_only=True)
class KeptRelations:
    """How many relations of real rows are kept.

    Args:
        kept: how many.
        relations: how many there are.
        lost: those that are lost, the strongest first.
        faded: those of which less than half is left, farther off than any other real sample's but
            not clearly: real samples of few units differ much themselves; likewise.
    """

    kept: int
    relations: int
    lost: tuple[Judged, ...]
    faded: tuple[Judged, ...]


def kept_relations(pairs: Sequence[Judged]) -> KeptRelations:
    """Return which relations of `LEAST_RELATION` or more are kept.

    Args:
        pairs: associations of two columns.
    """
    return _sorted_out([one for one in pairs if abs(one.real) >= LEAST_RELATION])


def kept_weak_relations(pairs: Sequence[Judged]) -> KeptRelations:
    """Return which relations from `LEAST_WEAK` to `LEAST_RELATION` are kept, of the clear ones.

    Those that differ by a third of their strength between real samples are left out: whether they
    are there at all is not clear.

    Args:
        pairs: associations of two columns.
    """
    return _sorted_out([one for one in pairs if _is_weak(one)])


def _sorted_out(relations: Sequence[Judged]) -> KeptRelations:
    lost, faded = [], []
    for one in sorted(relations, key=lambda one: -abs(one.real)):
        if _is_off(one):
            lost.append(one)
        elif _has_less_than_half(one) and one.excess > 0:
            faded.append(one)
    return KeptRelations(
        kept=len(relations) - len(lost) - len(faded),
        relations=len(relations),
        lost=tuple(lost),
        faded=tuple(faded),
    )
