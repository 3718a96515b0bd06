"""What a private selection costs, on mechanisms so small that its law is computed exactly.

Trials are i.i.d., so that of k trials the best score is s with probability F(s)^k - F(s-)^k, and
what had it is distributed as one trial given the score s, whichever of equal ones is taken.
"""

import contextlib
import secrets
from itertools import product

import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.experiments.sweeps import pool
from distributed_privrl.experiments.sweeps.config import Axis, PrivateSelection, ScoreConfig, Sweep
from distributed_privrl.experiments.sweeps.pool import PoolSpec, SelectionWorker
from distributed_privrl.experiments.sweeps.selection import _won
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import GaussianEvent, PureDpEvent
from distributed_privrl.privacy.repetitions import TrialCount
from distributed_privrl.privacy.units import Relation

LAWS = {
    "geometric": TrialCount(mean=5.0, shape=1.0),
    "logarithmic": TrialCount(mean=5.0, shape=0.0),
    "between them": TrialCount(mean=5.0, shape=0.5),
    "steeper": TrialCount(mean=5.0, shape=3.0),
    "poisson": TrialCount(mean=5.0, shape=None),
}
MOST_TRIALS = 1000
SWEEPS = {"geometric": 1500, "poisson": 4000, "logarithmic": 4000}
"""So many that a wrong law is missed less often than once in 1e6 runs."""
BY_CHANCE = 1e-7


def won(masses, scores, law):
    """Return the probability that each output wins, and that nothing does, in the last place.

    Args:
        masses: probability of each output of a trial; what they lack, a trial fails with.
        scores: of the outputs.
        law: of the number of trials.
    """
    numbers, probabilities = np.arange(MOST_TRIALS + 1), np.array(law.probabilities(MOST_TRIALS))
    assert probabilities.sum() > 1 - 1e-13

    def at_most(share):  # the probability that all trials are among this share
        return float((probabilities * share**numbers).sum())

    below = 1 - masses.sum()
    found = np.append(np.zeros(len(masses)), at_most(below))
    for score in np.unique(scores):
        same = scores == score
        mass = masses[same].sum()
        found[:-1][same] = (at_most(below + mass) - at_most(below)) * masses[same] / mass
        below += mass
    return found


def divergence(one, other, value):
    """Return the hockey-stick divergence of two laws, of both orders the larger."""
    return max(np.maximum(a - np.exp(value) * b, 0).sum() for a, b in ((one, other), (other, one)))


def true_epsilon(one, other, delta):
    """Return the least epsilon at which two laws are (epsilon, delta)-close."""
    if divergence(one, other, 0.0) <= delta:
        return 0.0
    return brentq(lambda value: divergence(one, other, value) - delta, 0.0, 50.0)


def reported(law, event, delta):
    relation = Relation.REPLACE_WITH_NULL
    return epsilon((law.event([event]),), delta=delta, relation=relation, accountant="rdp")


def test_the_exact_law_is_that_of_every_case_counted_out():
    """Two trials at most, each output of each: no formula."""
    law = TrialCount(mean=1.5, shape=1.0)
    masses, scores = np.array([0.2, 0.3, 0.4]), np.array([1.0, 2.0, 2.0])
    probabilities = law.probabilities(6)
    counted = np.zeros(4)
    outputs = [(mass, place) for place, mass in enumerate((*masses, 0.1))]
    for number in range(1, 7):
        for case in product(outputs, repeat=number):
            mass = probabilities[number] * np.prod([one for one, _ in case])
            known = [place for _, place in case if place < 3]
            # max takes the first of equal ones, as the product does.
            best = max(known, key=lambda place: scores[place]) if known else 3
            counted[best] += mass
    left = 1 - sum(probabilities)
    assert won(masses, scores, law) == pytest.approx(counted, abs=left)
    assert left < 2e-3


def responses(pure):
    """Yield pairs of laws of a trial with three outputs, whose losses are ``pure`` at most."""
    for top, mid in product((0.001, 0.01, 0.05, 0.2), (0.05, 0.2, 0.5)):
        for shift in (-1, 0, 1):
            one = np.array([top, mid, 1 - top - mid])
            other = np.array([top * np.exp(pure), mid * np.exp(shift * pure), 0.0])
            other[2] = 1 - other.sum()
            if other.min() > 0 and np.abs(np.log(one / other)).max() <= pure + 1e-9:
                yield one, other


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize("name", LAWS)
def test_the_winner_of_randomised_responses_costs_no_more_than_is_charged(name, delta):
    law, pure, scores = LAWS[name], 1.0, np.array([2.0, 1.0, 0.0])
    charged = reported(law, PureDpEvent(epsilon=pure), delta)
    worst = 0.0
    for one, other in responses(pure):
        judges = ([0.7, 0.7, 0.5], scores), ([1, 1, 1], scores), ([1, 1, 1], [1, 1, 0])
        for kept, judged in judges:  # a trial may fail, two outputs may have one score
            laws = [won(np.array(kept) * law_of, np.array(judged), law) for law_of in (one, other)]
            assert divergence(*laws, charged) <= delta
            worst = max(worst, true_epsilon(*laws, delta))
    assert worst > 1.4 * pure, "one trial's cost would not have covered it"
    assert charged < 2.5 * worst, "the charge is absurdly loose"


@pytest.mark.parametrize("delta", [1e-2, 1e-6])
@pytest.mark.parametrize("name", LAWS)
def test_the_winner_of_gaussian_releases_costs_no_more_than_is_charged(name, delta):
    """The score is the released number itself, in bins, some of which share one."""
    law, noise = LAWS[name], 2.0
    edges = np.linspace(-10, 11, 64)
    charged = reported(law, GaussianEvent(noise_multiplier=noise), delta)
    for scores in (np.arange(63), np.arange(63) // 3, -np.arange(63) % 5):
        masses = [np.diff(stats.norm.cdf(edges, mean, noise)) for mean in (0.0, 1.0)]
        laws = [won(one, scores, law) for one in masses]
        assert divergence(*laws, charged) <= delta
    assert charged < 4 * true_epsilon(*[won(one, np.arange(63), law) for one in masses], delta)


# A trial that is simulated: a configuration is drawn, then a response, whose truth the axis flips.
CONFIGS, RESPONSES = (0.2, 0.5, 0.8), 2
SCORES = {(0.2, 0): 0.5, (0.2, 1): 1.0, (0.5, 0): 1.0, (0.5, 1): None, (0.8, 0): 0.0, (0.8, 1): 2.0}


class ToyWorker(SelectionWorker):
    """A process of the pool whose trials are randomised responses; some of them fail."""

    def _tried(self, overrides, folder):
        share = overrides["share"]
        response = int(secrets.randbelow(1000) < 1000 * share)
        score = SCORES[share, response]
        if score is None:
            raise ValueError("no score")
        return ToyKept(score, (share, response), folder)


class ToyKept:
    """What the toy's process keeps of its best trial."""

    def __init__(self, score, output, folder):
        self.score, self.output, self.folder = score, output, folder


def toy_sweep(law):
    shape = {"shape": law.shape} if law.shape is not None else "poisson"
    selection = PrivateSelection(
        pays="private", law=shape, mean=law.mean, actors=2, score=ScoreConfig(by="fidelity")
    )
    search = {"share": Axis(choice=CONFIGS)}
    return Sweep(values={}, base=None, search=search, selection=selection, source="toy")


@pytest.fixture
def toy_pool(tmp_path, monkeypatch):
    """A pool whose trials cost nothing: nothing is silenced, and there is nothing to destroy."""
    monkeypatch.setattr(pool, "_silence", contextlib.nullcontext)
    monkeypatch.setattr(pool, "_temporary_in", contextlib.nullcontext)
    monkeypatch.setattr(pool, "_winner", lambda kept: kept)
    monkeypatch.setattr(pool.shutil, "rmtree", lambda *_, **__: None)
    monkeypatch.setattr(pool.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    spec = PoolSpec(
        values={},
        root="",
        reads=[],
        score=ScoreConfig(by="fidelity"),
        events=[],
        memory=str(tmp_path),
    )
    group = LocalExecutor().start(ToyWorker, [spec] * 2)
    yield group
    group.close()


def expected_of_toy(law, *, redrawn=False):
    """Return how often each output wins; ``redrawn``: were trials that fail drawn again."""
    outputs = [key for key, score in SCORES.items() if score is not None]
    masses = [(share if response else 1 - share) / len(CONFIGS) for share, response in outputs]
    masses = np.array(masses) / (sum(masses) if redrawn else 1)
    found = won(masses, np.array([SCORES[key] for key in outputs]), law)
    return dict(zip([*outputs, None], found, strict=True))


def fit(seen, shares):
    """Return the p-value of the chi-square test of what won so often."""
    possible = [key for key, share in shares.items() if share > 1e-9]
    if not set(seen) <= set(possible):
        return 0.0
    observed = [seen.get(key, 0) for key in possible]
    expected = [sum(seen.values()) * shares[key] for key in possible]
    return stats.chisquare(observed, expected, sum_check=False).pvalue


@pytest.mark.parametrize("name", SWEEPS)
def test_simulated_sweeps_have_winners_of_the_exact_law(name, toy_pool, monkeypatch):
    law = LAWS[name]
    sweep = toy_sweep(law)
    assert sweep.selection.count == law
    monkeypatch.setattr(PrivateSelection, "count", law)  # else its parameter is found each time
    seen = {}
    for _ in range(SWEEPS[name]):
        winners = _won(sweep, toy_pool)
        won_by = winners[0].output if winners else None
        seen[won_by] = seen.get(won_by, 0) + 1
    assert fit(seen, expected_of_toy(law)) > BY_CHANCE
    more = TrialCount(mean=2 * law.mean, shape=law.shape)
    for wrong in (expected_of_toy(more), expected_of_toy(law, redrawn=True)):
        assert fit(seen, wrong) < BY_CHANCE, "another law is told apart"
