"""Gates on choices by the exponential mechanism: what is drawn is what is charged.

The range of the privacy loss by enumeration of small score vectors, the law by many secure draws.
"""

from collections import Counter
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.selection import ExponentialSelection
from tests.gates.bounds import ALPHA
from tests.gates.system import System

EPSILON = 1.0
CANDIDATES = 3
DRAWS = 4_000


def law(scores: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """Return the probability of each candidate: proportional to exp(score / scale)."""
    weights = np.exp((scores - scores.max()) / scale)
    return np.asarray(weights / weights.sum())


@dataclass
class Spy:
    """Takes the first candidate, and remembers the odds of all.

    Args:
        laws: of each choice so far.
    """

    laws: list[NDArray[np.float64]] = field(default_factory=list)

    def choose_exponential(self, scores: list[int], *, scale: float, tag: int = 0) -> int:
        self.laws.append(law(np.array(scores), scale))
        return 0


def drawn_law(selection: ExponentialSelection, scores: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the odds with which a selection draws."""
    spy = Spy()
    selection.choose(scores.tolist(), spy)
    return spy.laws[0]


def gate_selections(system: System) -> None:
    """The loss between neighbours fills a range as long as what is charged, and no longer one."""
    for low, high in ((-1, 1), (-2, 2), (-2, 1)):
        selection = ExponentialSelection(span=high - low, epsilon=EPSILON)
        charged, widest = selection.event.epsilon, 0.0
        assert charged <= EPSILON, f"a choice at {EPSILON:g} is charged {charged:g}"
        for scores in product(range(4), repeat=CANDIDATES):
            mine = drawn_law(selection, np.array(scores))
            for moves in product((low, 0, high), repeat=CANDIDATES):
                other = drawn_law(selection, np.add(scores, moves))
                widest = max(widest, float(np.ptp(np.log(mine / other))))
        what = f"choices by scores that move by {low} to {high} range over {widest:.3f}"
        assert widest <= charged * (1 + 1e-9), f"{what}, charged {charged:g}"
        assert widest >= charged * (1 - 1e-9), f"{what} alone, charged {charged:g}"


def gate_exponential_choices(system: System) -> None:
    """Secure draws follow the law of what is charged: neither sharper nor flatter."""
    selection = ExponentialSelection(span=2, epsilon=2.0)
    scores, chooser = np.arange(4), SecureChooser()
    seen = Counter(selection.choose(scores.tolist(), chooser) for _ in range(DRAWS))
    expected = law(scores, selection.span / selection.event.epsilon) * DRAWS
    fit = stats.chisquare([seen[position] for position in range(len(scores))], expected)
    assert fit.pvalue > ALPHA, f"choices are not of the law that is charged, p={fit.pvalue:.1e}"
