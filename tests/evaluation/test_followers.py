"""Columns that follow from another one, and red lines that say one thing again."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.random import Streams
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.evaluation import usefulness as module
from distributed_privrl.evaluation.followers import Problem, followers, in_lines, kept_ones
from distributed_privrl.evaluation.problems import problems_of
from distributed_privrl.evaluation.relations import kept_relations
from distributed_privrl.evaluation.usefulness import Usefulness, usefulness
from tests.evaluation.named import names

CHOICES = ("bus", "car", "rail", "tram", "walk")


def travellers(seed: int, count: int = 3000) -> Rows:
    """Return rows whose choice has an indicator of each value, and decides of the time."""
    rng = np.random.default_rng(seed)
    choice = rng.choice(CHOICES, count)
    minutes = np.searchsorted(CHOICES, choice) * 10 + rng.normal(0, 5, count)
    frame = pd.DataFrame(
        {
            **{f"takes {one}": names(*np.where(choice == one, "yes", "no")) for one in CHOICES},
            "choice": names(*choice),
            "minutes": minutes,
            "gain": rng.normal(size=count),
        }
    )
    return Rows(
        frame=frame,
        state=tuple(frame.columns[:-2]),
        action=("minutes",),
        successor=(),
        units=np.arange(count).astype(np.uint64),
        ends=np.ones(count, bool),
        reward="gain",
        end=None,
    )


REAL = travellers(0)


def test_what_another_column_tells_in_every_row_follows_from_it() -> None:
    found = followers(REAL.frame, list(REAL.frame))
    assert found == {f"takes {one}": "choice" for one in CHOICES}
    nearly = REAL.frame.assign(choice=names(*["car", *REAL.frame["choice"][1:-1], "bus"]))
    assert REAL.frame["choice"].iloc[0] != "car"
    assert "takes car" not in followers(nearly, list(nearly)), "one row is enough"


def test_of_two_that_tell_each_other_the_first_one_stands() -> None:
    codes = pd.Series(np.arange(300) % 4 * 1.5)
    frame = pd.DataFrame({"one": codes, "two": 7 - codes, "high": codes > 2})
    assert followers(frame, ["one", "two", "high"]) == {"two": "one", "high": "one"}


def test_nothing_follows_from_what_nearly_every_row_has_a_value_of_its_own_in() -> None:
    frame = pd.DataFrame({"person": np.arange(100) // 10, "sex": np.arange(100) // 10 % 2})
    assert followers(frame, ["person", "sex"]) == {}


def test_what_a_person_keeps_follows_from_the_row_s_own_column() -> None:
    rng = np.random.default_rng(0)
    sex, age = names(*rng.choice(["F", "M"], 100)), pd.Series(rng.integers(50, 60, 100) * 1.0)
    ends = np.arange(100) % 5 == 4
    frame = pd.DataFrame(
        {"sex": sex, "age": age, "next sex": sex.mask(ends), "next age": age.mask(ends) + 1}
    )
    steps = {"next sex": "sex", "next age": "age"}
    assert kept_ones(frame, steps) == {"next sex": "sex"}
    gaps = frame.assign(sex=sex.mask(np.arange(100) % 7 == 0))
    assert kept_ones(gaps, steps) == {"next sex": "sex"}, "where both are known"
    changed = frame.assign(**{"next sex": names(*["F" if sex[0] == "M" else "M", *sex[1:]])})
    assert kept_ones(changed, steps) == {}, "one row is enough"
    assert kept_ones(frame[:20], steps) == {}, "16 rows are too few"


def problem(text: str, *columns: str, kind: str = "pair") -> Problem:
    return Problem(text=text, kind=kind, columns=columns)


def test_problems_that_say_one_thing_again_are_counted() -> None:
    follows = {"takes bus": "choice", "takes car": "choice"}
    found = in_lines(
        [
            problem("bus and minutes", "takes bus", "minutes"),
            problem("choice and minutes", "choice", "minutes"),
            problem("minutes and gain", "minutes", "gain"),
            problem("car and minutes", "takes car", "minutes"),
            problem("bus is rare", "takes bus", kind="event"),
            problem("choice is bus", "choice", kind="event"),
            problem("choice is car", "choice", kind="event"),
        ],
        follows,
    )
    assert found == [
        "choice and minutes (2 more such lines on columns that follow from choice)",
        "minutes and gain",
        "choice is bus (1 more such line on columns that follow from choice)",
        "choice is car",
    ]
    kept = {"next site": "site"}
    mixed = [
        problem("next site", "next site", kind="taught"),
        problem("gain", "gain", kind="taught"),
        problem("site a", "site", kind="event"),
        problem("gain is high", "gain", kind="event"),
        problem("site b", "site", kind="event"),
    ]
    assert in_lines(mixed, kept) == ["next site", "gain", "site a", "gain is high", "site b"]
    alone = [problem("a", "takes bus", kind="event"), problem("b", "takes car", kind="event")]
    assert in_lines(alone, follows) == ["a (1 more such line on columns that follow from choice)"]


def test_a_lost_relation_of_a_category_is_one_red_line_and_not_one_an_indicator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_areas", "_taught", "_chosen"):
        monkeypatch.setattr(module, name, lambda *_: ())
    made = travellers(1)
    mixed = made.frame["minutes"].sample(frac=1, random_state=1).to_numpy()
    made = dataclasses.replace(made, frame=made.frame.assign(minutes=mixed))
    found = usefulness(REAL, made, Streams(0))
    assert isinstance(found, Usefulness)
    (line,) = problems_of(found)
    assert line.startswith("how choice and minutes go together: 0.9")
    assert line.endswith(" more such lines on columns that follow from choice)")
    kept = kept_relations(found.own_pairs)
    assert (kept.kept, kept.relations) == (0, 1)


def test_indicators_that_no_longer_follow_are_an_exact_rule_and_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("_areas", "_taught", "_chosen", "rates_among_rare"):
        monkeypatch.setattr(module, name, lambda *_: ())
    made = travellers(1)
    broken = {
        f"takes {one}": names(*made.frame[f"takes {one}"].sample(frac=1, random_state=2))
        for one in ("bus", "car")
    }
    made = dataclasses.replace(made, frame=made.frame.assign(**broken))
    found = usefulness(REAL, made, Streams(0))
    assert isinstance(found, Usefulness)
    rules = [one for one in problems_of(found) if one.startswith("what depends on takes ")]
    (line,) = rules
    assert "choice tells takes " in line
    assert line.endswith(" more such lines on columns that follow from choice)")
