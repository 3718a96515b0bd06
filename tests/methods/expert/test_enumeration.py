"""Exact laws of the filter on a toy process, for neighbouring sets of experts, in both directions.

Each test of a guarantee has one beside it in which the same figure catches a mistake.
"""

from collections import defaultdict
from dataclasses import dataclass, replace

import numpy as np
import pytest

from distributed_privrl.privacy import sparse_vector
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.sparse_vector import StablePrefixes, stable_prefixes
from tests.methods.expert.toy import END, Law, Table, Toy, episodes, excess, mixed, stopping

pytestmark = pytest.mark.parametrize("step", [sparse_vector.STEP, 0.25], ids=["fine", "coarse"])
LEAST = 0.2
ONE = Table(((0.8, 0.2), (0.2, 0.8)))
OTHER = Table(((0.2, 0.8), (0.8, 0.2)))
HALF = Table(((0.5, 0.5), (0.3, 0.7)))
BELOW = Table(((0.9, 0.1), (0.8, 0.2)), did=((0.9, 0.1), (0.8, 0.2)))
WILD = Table(((0.7, 0.7), (0.8, 0.2)), did=((0.0, 1.0), (0.8, 0.2)))
NAMELESS = Table(((float("nan"), 0.5), (0.5, 0.5)), did=((0.0, 1.0), (0.5, 0.5)))

SETS = {
    "most alike": ((ONE, OTHER), (95, 7), (95, 8)),
    "a crowd": ((ONE, OTHER, HALF), (150, 30, 120), (151, 30, 120)),
    "one more of many alike": ((ONE,), (60,), (61,)),
    "one among others": ((ONE, OTHER), (60, 0), (60, 1)),
    "a minority": ((ONE, OTHER, HALF), (40, 9, 12), (40, 10, 12)),
    "few on both sides": ((ONE, OTHER), (20, 20), (20, 21)),
    "around the stable count": ((ONE, OTHER), (14, 2), (14, 3)),
    "fewer than can be stable": ((ONE, OTHER), (3, 2), (3, 3)),
    "one left": ((ONE, OTHER), (1, 0), (1, 1)),
    "one below the minimum": ((ONE, BELOW), (60, 0), (60, 1)),
    "many below the minimum": ((ONE, BELOW), (60, 40), (60, 41)),
    "one that is no distribution": ((ONE, WILD, HALF), (50, 0, 9), (50, 1, 9)),
    "one more beside malformed ones": ((ONE, WILD, NAMELESS), (50, 20, 5), (51, 20, 5)),
    "malformed ones alone": ((NAMELESS, WILD), (30, 0), (30, 1)),
}


@pytest.fixture(autouse=True)
def _in_steps(step: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps as they are, whose law is that of continuous noise, and coarse ones, exactly."""
    monkeypatch.setattr(sparse_vector, "STEP", step)


def mechanism(variant: str = "tight", **changes: float) -> StablePrefixes:
    made = stable_prefixes(
        variant=variant,  # type: ignore[arg-type]
        epsilon=1.0 if variant == "tight" else 20.0,
        delta=1e-6,
        experts=3000,
        minimum_probability=LEAST,
        draws=1,
        max_length=3,
    )
    return replace(made, **changes)


@dataclass(frozen=True)
class Careless(StablePrefixes):
    """A mechanism that does not check that its failure fits its margin."""

    def __post_init__(self) -> None:
        pass


def careless(made: StablePrefixes, **changes: float) -> Careless:
    return Careless(
        **{**{name: getattr(made, name) for name in made.__dataclass_fields__}, **changes}
    )


def worst(toy: Toy, made: StablePrefixes, fewer: tuple[int, ...], more: tuple[int, ...]) -> float:
    one, other = toy.law(made, fewer), toy.law(made, more)
    for law in (one, other):
        assert sum(law.values()) == pytest.approx(1, abs=1e-8)
    return max(excess(one, other, made.epsilon), excess(other, one, made.epsilon))


@pytest.mark.parametrize("variant", ["tight", "paper"])
@pytest.mark.parametrize("name", SETS)
def test_neighbours_stay_within_what_is_claimed(name: str, variant: str) -> None:
    kinds, fewer, more = SETS[name]
    made = mechanism(variant)
    toy = Toy(kinds, 3, LEAST)
    assert worst(toy, made, fewer, more) <= made.draw_failure + 1e-9


@pytest.mark.parametrize("live", [0, 1, 60])
@pytest.mark.parametrize("variant", ["tight", "paper"])
def test_experts_that_cannot_be_drawn_do_not_speak_for_those_that_can(
    live: int, variant: str
) -> None:
    """Many policies without trajectories beside few with some: none of the many may count."""
    made = mechanism(variant)
    toy = Toy((ONE, ONE), 3, LEAST, null=frozenset({0}))
    assert worst(toy, made, (4000, live), (4000, live + 1)) <= made.draw_failure + 1e-9
    assert worst(toy, made, (4000, live), (4001, live)) <= made.draw_failure + 1e-9


def test_something_is_released_where_the_guarantee_is_checked() -> None:
    kinds, fewer, _ = SETS["most alike"]
    law = Toy(kinds, 3, LEAST).law(mechanism(), fewer)
    assert 0.05 < law[()] < 0.95


def test_an_epsilon_that_is_too_low_is_caught() -> None:
    kinds, fewer, more = SETS["one more of many alike"]
    toy, made = Toy(kinds, 3, LEAST), mechanism()
    one, other = toy.law(made, fewer), toy.law(made, more)
    assert excess(other, one, made.epsilon / 5) > 10 * made.draw_failure


def test_a_missing_margin_is_caught() -> None:
    made = mechanism()
    kinds, fewer, more = SETS["one left"]
    bare = careless(made, margin=1e-9)
    assert worst(Toy(kinds, 3, LEAST), bare, fewer, more) > 10 * made.draw_failure


def test_a_stable_count_that_forgets_the_next_action_is_caught() -> None:
    """theta = c_min instead of c_min / p_min: what follows a prefix gives the one expert away."""
    rare = 1e-5
    kinds = (Table(((1 - rare, rare),) * 2), Table(((rare, 1 - rare),) * 2))
    made = mechanism()
    toy = Toy(kinds, 3, rare)
    assert worst(toy, made, (300, 0), (300, 1)) > 10 * made.draw_failure


def test_the_paper_fails_where_the_minimum_is_violated() -> None:
    """Experts that never take an action, counted all the same: one that does shows."""
    kinds = (Table(((1.0, 0.0), (1.0, 0.0))), Table(((0.0, 1.0), (0.0, 1.0))))
    for variant in ("paper", "tight"):
        made = mechanism(variant)
        unchecked = Toy(kinds, 3, 0.0)
        assert worst(unchecked, made, (300, 0), (300, 1)) > 5 * made.draw_failure
        assert worst(Toy(kinds, 3, LEAST), made, (300, 0), (300, 1)) <= made.draw_failure + 1e-9


def test_experts_left_out_by_what_they_visited_would_show() -> None:
    """Why a malformed policy does not make its expert null as a whole.

    Experts that are malformed in state 1 and are left out because a trajectory of theirs went
    there: the others' law is bent, and one well-formed expert shows.
    """
    split = Table(((0.5, 0.5), (0.5, 0.5)))
    bent = Table(((0.5, 0.5), (0.95, 0.05)), did=((0.5, 0.5), (0.5, 0.5)))
    toy, made = Toy((bent, split), 3, LEAST), mechanism()
    visits = np.array([1 in one.states[: len(one.actions)] for one in episodes(3)])
    odds = toy.odds().copy()
    odds[0, visits] = 0.0
    odds[0] /= odds[0].sum()
    one, other = (toy.law(made, numbers, odds=odds) for numbers in ((400, 0), (400, 1)))
    assert excess(other, one, made.epsilon) > made.draw_failure
    assert worst(toy, made, (400, 0), (400, 1)) <= made.draw_failure + 1e-9


def two_draws(toy: Toy, made: StablePrefixes, numbers: tuple[int, ...]) -> Law:
    """Return the law of two draws of experts that have one trajectory each."""
    laws = toy.laws(made, numbers)
    total = sum(numbers)
    apart = mixed(laws, numbers)
    found: defaultdict[tuple[object, ...], float] = defaultdict(float)
    for first, p in apart.items():
        for second, q in apart.items():
            found[first, second] += p * q
        found[first, ()] += p / total
    for law, number in zip(laws, numbers, strict=True):
        for first, p in law.items():
            for second, q in law.items():
                found[first, second] -= p * q * number / total**2
    return found  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["one more of many alike", "a minority", "few on both sides"])
def test_running_short_stays_within_what_it_is_charged(name: str) -> None:
    kinds, fewer, more = SETS[name]
    made = replace(mechanism(), draws=2, release_pool=1)
    toy = Toy(kinds, 2, LEAST)
    one, other = two_draws(toy, made, fewer), two_draws(toy, made, more)
    assert sum(one.values()) == pytest.approx(1, abs=1e-8)
    claimed = 2 * made.draw_failure + made.overflow
    pairs = ((one, other), (other, one))
    assert max(excess(*pair, 2 * made.epsilon) for pair in pairs) <= claimed


def test_the_sampler_follows_the_enumerated_law() -> None:
    """Frequencies of the mechanism's own draws, both ways, alpha about 1e-6."""
    made, draws = mechanism(), 6_000
    counts = np.array([made.threshold + 2.0, made.threshold, made.threshold - 2.0])
    source = SeededNoise(5)
    seen = np.bincount(
        [made.stable_steps(counts, source, tag=number) for number in range(draws)], minlength=4
    )
    expected = stopping(made, counts) * draws
    assert (expected > 100).all()
    assert ((seen - expected) ** 2 / expected).sum() < 30.7  # chi-square, 3 degrees


def test_episodes_are_all_there() -> None:
    some = list(episodes(3))
    assert any(one.states[-1] == END for one in some)
    odds = Toy((ONE, HALF), 3, LEAST).odds()
    assert odds.sum(axis=1) == pytest.approx([1, 1])
