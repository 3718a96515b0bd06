"""Numbers that grow with time: what they become is counted with the time, and with themselves."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from numpy.typing import NDArray

from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.declared import Gaps
from distributed_privrl.data.spaces import TableBox
from distributed_privrl.marginals import belief
from distributed_privrl.marginals.clocks import asked_by_growth, between, clocks
from distributed_privrl.marginals.column import NextObservation
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.step_tables import step_columns, trajectory_columns
from distributed_privrl.marginals.steps import time_groups
from tests.marginals.beliefs import believed, steps, visits

PEOPLE, YEARS = 4000, 3
HIGH = np.array([5.0, 36.0])
GROWN = ("observation_0", "observation_1")


def table(
    *,
    coding: NextObservation = "absolute",
    rising: bool = True,
    memory: bool = False,
    gaps: bool = False,
    high: float = HIGH[0],
) -> TableColumns:
    """Return columns of a class, which never falls, and a score, which may be missing."""
    highest = np.array([high, HIGH[1]])
    bounds = Bounds(
        low=np.zeros(2),
        high=highest,
        columns=("observation_0", "observation_1"),
        step=np.ones(2),
    )
    top = np.array([*highest, 1][: 2 + gaps], np.float32)
    columns = step_columns(
        TableBox(np.zeros_like(top), top, [(2, 3)] if gaps else []),
        Discrete(1),
        bounds,
        next_observation=coding,
        ends=3,
        rising=[0] if rising else [],
        has_reward=False,
        gaps=Gaps(observation=(1,)) if gaps else Gaps(),
    )
    found = trajectory_columns(
        columns,
        groups=time_groups(YEARS),
        previous=False,
        longest=YEARS,
        memory=[1] if memory else [],
    )
    return replace(found, ends_unseen=True)


@cache
def pupils(growth: float = 8.0) -> NDArray[np.float64]:
    """Return classes and scores of pupils who come to the first four classes, and have a level."""
    source = np.random.default_rng(0)
    first = np.repeat(source.integers(0, 4, PEOPLE), YEARS)
    late = first + np.tile(np.arange(YEARS), PEOPLE)
    own = np.repeat(source.normal(0, 2.4, PEOPLE), YEARS)
    score = 6 + growth * late * (1 - late / 11) + own + source.normal(0, 1.5, len(own))
    return np.stack([late, np.clip(np.round(score), 0, HIGH[1])], axis=1)


def a_year_apart(observations: NDArray[Any]) -> float:
    """Return the correlation of scores of a year and the next, each beside its class's mean."""
    late, score = observations[..., 0].ravel(), observations[..., 1].astype(np.float64)
    sums, sizes = np.bincount(late.astype(int), score.ravel()), np.bincount(late.astype(int))
    beside = score - (sums / np.maximum(sizes, 1))[observations[..., 0].astype(int)]
    return float(np.corrcoef(beside[:, :-1].ravel(), beside[:, 1:].ravel())[0, 1])


def asked(columns: TableColumns, rows: NDArray[np.float64], *cliques: tuple[str, ...]) -> set[Any]:
    """Return the names of the columns that growth asks for, once others were counted."""
    found = believed(columns, steps(visits(rows, YEARS), YEARS), cliques, each=YEARS)
    pairs = asked_by_growth(found.bins, found.tables)
    return {tuple(columns[i].name for i in pair) for pair in pairs}


def test_the_time_and_what_never_falls_tell_how_late_it_is() -> None:
    columns = table()
    assert [columns[i].name for i in clocks(columns)] == ["time", "observation_0"]
    assert [columns[i].name for i in clocks(table(rising=False))] == ["time"]


@pytest.mark.parametrize("coding", ["absolute", "difference"])
def test_growth_that_was_counted_asks_for_what_a_number_becomes(coding: NextObservation) -> None:
    """A change says how much it grows, so that it has none; nor has what does not grow."""
    columns = table(coding=coding)
    told = {
        ("observation_0", "next_observation_1"),
        ("observation_1", "next_observation_1"),
    }
    assert asked(columns, pupils()) == set()
    assert asked(columns, pupils(), GROWN) == (told if coding == "absolute" else set())
    assert asked(columns, pupils(growth=0.2), GROWN) == set()
    assert asked(columns, pupils(), ("observation_0", "next_observation_0")) == set()


def test_the_clock_that_tells_most_is_asked_for() -> None:
    columns = table()
    by_time = asked(columns, pupils(), ("observation_1", "time"))
    assert by_time == {
        ("next_observation_1", "time"),
        ("observation_1", "next_observation_1"),
    }
    both = asked(columns, pupils(), ("observation_1", "time"), (*GROWN, "end"))
    assert both == {
        ("observation_0", "next_observation_1"),
        ("observation_1", "next_observation_1"),
    }


def test_gaps_are_no_large_numbers() -> None:
    """Most scores are missing, whatever the class: those that are there grow as before."""
    missing = np.random.default_rng(1).random(len(pupils())) < 0.7
    late, score = pupils().T
    rows = np.stack([late, np.where(missing, 0, score), missing], axis=1)
    assert asked(table(gaps=True), rows, GROWN) == {
        ("observation_0", "next_observation_1"),
        ("observation_1", "next_observation_1"),
    }
    assert between(np.zeros((3, 2))) == between(np.ones((1, 2))) == 0.0


def test_what_was_asked_for_comes_first_and_growth_next(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = table()
    found = believed(columns, steps(visits(pupils(), YEARS), YEARS), [GROWN], each=YEARS)
    names = [column.name for column in columns.columns]
    named = tuple(sorted(map(names.index, ("observation_0", "next_observation_0"))))
    monkeypatch.setattr(found.candidates, "_asked", (named,))
    counted, open_ = [], found.worth_counting()
    while (one := found.asked([each for each in open_ if each.clique not in counted])) is not None:
        counted.append(one.clique)
        if len(counted) > 3:
            break
    growing = list(asked_by_growth(found.bins, found.tables))
    assert counted == [named, *growing]
    others = [one for one in open_ if one.clique != named]
    assert found.asked(others) is not None
    for planned, enough in ((2, True), (3, False)):
        monkeypatch.setattr(
            belief, "asked_by_growth", lambda *_: (*growing, found.tables[0].clique)
        )
        monkeypatch.setattr(found, "_planned", planned)
        assert (found.asked(others) is None) == enough, "half of all counts at most"
    monkeypatch.setattr(belief, "asked_by_growth", lambda *_: ())
    assert found.asked(others) is None


@pytest.mark.parametrize("memory", [False, True])
def test_pupils_of_a_class_keep_what_they_were(memory: bool) -> None:
    """With the pairs that growth asks for, and not without them."""
    columns, rows = table(memory=memory), pupils()
    after = "next_observation_1"
    level = "memory_observation_1"
    cliques: list[tuple[str, ...]] = [GROWN, ("observation_0", "next_observation_0")]
    cliques += [(level, after), (level, "observation_1")] if memory else [("observation_1", after)]
    real = a_year_apart(rows.reshape(-1, YEARS, 2))
    kept = []
    for grown in (True, False):
        pairs = [("observation_0", after), ("observation_1", after)] if grown else []
        counted = list(dict.fromkeys([*cliques, *pairs]))
        parts = [0 if "observation_0" in one else 8 for one in counted]
        people = steps(visits(rows, YEARS), YEARS)
        found = believed(columns, people, counted, each=YEARS, parts=parts)
        made = Rollout(found.model(), YEARS).draw(2000, np.random.default_rng(0))
        whole = made.offsets[:-1][made.lengths == YEARS]
        whole += np.flatnonzero(made.lengths == YEARS)
        kept.append(a_year_apart(made.observations[whole[:, None] + np.arange(YEARS)]))
    assert kept[0] > 0.55 * real
    assert kept[1] < kept[0] - 0.15


def test_halves_of_one_count_do_not_contradict_the_bins_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody knows what lies within halves, until the same numbers are counted in bins."""
    columns = table(high=30.0)
    source = np.random.default_rng(0)
    own = source.normal(size=PEOPLE * YEARS)
    pair = np.stack([own, 0.9 * own + 0.44 * source.normal(size=len(own))], axis=1)
    rows = np.clip(np.round(15 + 4 * pair), 0, 30)
    cliques = [(*GROWN, "time"), (*GROWN, "end")]
    found = believed(columns, steps(visits(rows, YEARS), YEARS), cliques, each=YEARS, parts=[2, 0])
    kept = []
    for finer in (True, False):
        if not finer:
            monkeypatch.setattr(belief.Belief, "_finer_elsewhere", lambda *_: set())
        found._fitted = -1, False
        found.estimate()
        told = [
            [set(np.unique(line)) for line in found._measured(one).lines] for one in found.tables
        ]
        assert ({0.0, 1.0} == set().union(*told[0])) == finer
        assert not told[1]
        kept.append(np.corrcoef(found._rows[:, 0], found._rows[:, 1])[0, 1])
    real = np.corrcoef(rows[:, 0], rows[:, 1])[0, 1]
    assert kept[0] > 0.85 * real > 0.7 > 0.6 > kept[1]
