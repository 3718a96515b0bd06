"""Rules that hold exactly in real rows: found by name, kept, or broken and said so."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.random import Streams
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.evaluation import usefulness as module
from distributed_privrl.evaluation.exact_rules import judging
from distributed_privrl.evaluation.exact_rules.judging import (
    JudgedRule,
    judged_rules,
    rule_problems,
    told_once,
)
from distributed_privrl.evaluation.exact_rules.kinds import NeverTogether, NotAbove
from distributed_privrl.evaluation.judged import Judged
from distributed_privrl.evaluation.problems import problems_of
from distributed_privrl.evaluation.usefulness import Usefulness, usefulness
from tests.evaluation.named import names

BRANDS, WEIGHTS = np.array(["A", "B", "C"]), np.array([12.5, 20.0, 33.0])
BROKEN: dict[str, tuple[str, str]] = {
    "weight": ("brand given weight", "weight tells brand"),
    "total": ("total given age", "total = 2.5 x age + 1"),
    "later": ("later given age", "later = age + 3"),
    "debt": ("paid given debt", "paid = -debt"),
    "paid": ("paid given brand", "paid is the one of price A, price B, price C that brand picks"),
    "pregnant": ("pregnant given sex", "sex is never M where pregnant is yes"),
}
"""What is named if a column is shuffled, and how: in real rows all of it holds."""


def shop(seed: int, units: int = 400, *, noise: float = 0.0, exceptions: float = 0.0) -> Rows:
    """Return visits in which the price of the brand is paid, and more follows from more.

    Args:
        seed: of all draws.
        units: people, with five visits each.
        noise: deviation of what is added to each number but prices and ages.
        exceptions: share of the rows that break every rule.
    """
    rng = np.random.default_rng(seed)
    count = 5 * units
    prices = rng.choice(np.arange(10, 60) / 10, (count, 3))
    brand, age = rng.integers(3, size=count), rng.integers(18, 90, count).astype(float)
    sex = np.repeat(rng.choice(["F", "M"], units), 5)
    pregnant = np.where((sex == "F") & (rng.random(count) < 0.2), "yes", "no")
    paid = prices[np.arange(count), brand]
    odd = rng.random(count) < exceptions
    columns = {
        "weight": WEIGHTS[brand],
        "total": 2.5 * age + 1,
        "later": age + 3,
        "paid": paid,
        "debt": -paid,
    }
    columns = {
        name: np.where(odd, rng.permutation(values), values) + noise * rng.normal(size=count)
        for name, values in columns.items()
    }
    frame = pd.DataFrame(
        {
            **{f"price {name}": prices[:, place] for place, name in enumerate(BRANDS)},
            **{"age": age, "sex": names(*sex), "pregnant": names(*pregnant)},
            **{"weight": columns["weight"], "brand": names(*BRANDS[brand])},
            **{name: columns[name] for name in ("total", "later", "debt", "paid")},
        }
    )
    return rows_of(frame, units)


def rows_of(frame: pd.DataFrame, units: int) -> Rows:
    """Return five rows a unit, all columns of the state but the last two."""
    *state, action, reward = frame.columns
    return Rows(
        frame=frame,
        state=tuple(state),
        action=(action,),
        successor=(),
        units=np.repeat(np.arange(units), len(frame) // units).astype(np.uint64),
        ends=np.ones(len(frame), bool),
        reward=reward,
        end=None,
    )


def asked(real: Rows, made: Rows, columns: Sequence[str] | None = None) -> dict[str, JudgedRule]:
    halves = real.halves(np.random.default_rng(0))
    chosen = list(real.frame) if columns is None else columns
    found = judged_rules(*halves, made, chosen, np.random.default_rng(1))
    return {one.share.name: one for one in found}


def shuffled(rows: Rows, *columns: str) -> Rows:
    frame, rng = rows.frame.copy(), np.random.default_rng(5)
    for name in columns:
        frame[name] = frame[name].iloc[rng.permutation(len(frame))].reset_index(drop=True)
    return rows_of(frame, len(np.unique(rows.units)))


REAL = shop(0)


def test_rules_are_found_and_another_sample_keeps_to_them() -> None:
    found = asked(REAL, shop(1))
    for name, says in BROKEN.values():
        assert found[name].rule.says == says
        assert found[name].share.value == found[name].share.reference == 1
    assert not any(one.lost for one in found.values())
    assert "weight given brand" not in found, "of two directions one is told"


@pytest.mark.parametrize("column", BROKEN)
def test_a_broken_rule_is_named(column: str) -> None:
    name, says = BROKEN[column]
    found = asked(REAL, shuffled(shop(1), column))
    assert found[name].lost
    problems = rule_problems(list(found.values()))
    target = name.split(" given ")[0]
    (line,) = (
        one.text for one in problems if one.text.startswith(f"what depends on {target} given ")
    )
    if column != "paid":  # a debt tells what was paid, too, and is broken as badly
        assert line.startswith(f"what depends on {name}: {says}; of the rows that it concerns, ")
    assert ", 100.0% of other real ones keep to it, " in line
    assert line.endswith("% of synthetic ones")
    assert next(iter(found.values())).lost, "the worst is first"


def test_rules_that_hold_in_nearly_all_rows_are_rules_and_looser_ones_are_none() -> None:
    nearly = asked(shop(0, 1000, exceptions=0.003), shop(1, 1000, exceptions=0.003))
    assert "later given age" in nearly
    assert not any(one.lost for one in nearly.values())
    loose = asked(shop(0, 1000, exceptions=0.03), shop(1, 1000))
    assert {one.rule.says for one in loose.values()} == {
        "sex is never M where pregnant is yes",
        "age is never above total",
        "later is never above total",
    }, "what is left of 2.5 times a number is that it is more"


def test_numbers_that_are_off_by_next_to_nothing_keep_to_a_rule() -> None:
    assert not any(one.lost for one in asked(REAL, shop(1, noise=1e-4)).values())
    far = asked(REAL, shop(1, noise=1.0))
    assert far["later given age"].lost
    assert far["later given age"].share.value < 0.3


def test_a_table_without_rules_has_none() -> None:
    rng = np.random.default_rng(0)
    count = 2000
    walk = rng.normal(size=(count, 3)) @ rng.normal(size=(3, 3))
    frame = pd.DataFrame(
        {
            "one": walk[:, 0],
            "two": walk[:, 1] + 0.05 * rng.normal(size=count),
            "few": rng.integers(4, size=count) * 1.0,
            "mostly": np.where(rng.random(count) < 0.98, 0.0, 1.0),
            "kind": names(*rng.choice(["a", "b", "c"], count, p=[0.6, 0.39, 0.01])),
            "near": walk[:, 0] + 0.02 * rng.normal(size=count),
        }
    )
    frame["alike"] = frame["mostly"]
    assert asked(rows_of(frame, 400), rows_of(frame, 400)) == {}


def test_what_few_people_have_is_no_rule() -> None:
    """Each person has one ward and one colour: by chance, they go together."""
    rng = np.random.default_rng(0)
    units = 12
    frame = pd.DataFrame(
        {
            "ward": names(*np.repeat(rng.choice(list("ABCDEF"), units), 50)),
            "colour": names(*np.repeat(rng.choice(["red", "blue"], units), 50)),
            "person": np.repeat(np.arange(units) * 1.0, 50),
            "gain": rng.normal(size=50 * units),
        }
    )
    rows = rows_of(frame, units)
    assert asked(rows, shuffled(rows, "colour")) == {}


def test_gaps_are_no_exceptions_and_what_is_told_of_too_few_rows_is_left_out() -> None:
    some = np.random.default_rng(2).random(len(REAL)) < 0.3
    gaps = rows_of(REAL.frame.assign(later=REAL.frame["later"].mask(some)), 400)
    found = asked(gaps, shuffled(gaps, "later"))
    assert found["later given age"].lost
    made = shop(1)
    empty = rows_of(made.frame.assign(later=np.nan), 400)
    assert "later given age" not in asked(REAL, empty)
    assert asked(REAL, made.select(np.arange(20))) == {}


def games(seed: int, units: int = 400) -> pd.DataFrame:
    """Return seasons of players, who hit no more often than they try, and run home more seldom."""
    rng = np.random.default_rng(seed)
    count = 5 * units
    tries = np.floor(rng.gamma(2.0, 80.0, count))
    hits = rng.binomial(tries.astype(int), 0.28).astype(float)
    home = rng.binomial(hits.astype(int), 0.3).astype(float)
    steals = np.floor(rng.gamma(1.0, 20.0, count))
    year = rng.integers(1900, 2000, count).astype(float)
    return pd.DataFrame(
        {"year": year, "tries": tries, "hits": hits, "home": home, "steals": steals}
    )


def test_a_number_that_is_never_above_another_one_is_a_rule() -> None:
    found = asked(rows_of(games(0), 400), rows_of(games(1), 400))
    assert {one.rule.says for one in found.values()} == {
        "hits is never above tries",
        "home is never above hits",
    }, "what follows from both is not told, and no number comes near the year"
    assert not any(one.lost for one in found.values())
    made = games(1)
    made["hits"] = made["hits"].iloc[np.random.default_rng(2).permutation(len(made))].to_numpy()
    broken = asked(rows_of(games(0), 400), rows_of(made, 400))
    assert broken["hits given tries"].lost
    assert broken["home given hits"].lost
    assert 0.5 < broken["hits given tries"].share.value < 0.9


def test_a_number_that_is_sometimes_above_is_no_rule() -> None:
    real = games(0)
    some = np.random.default_rng(3).random(len(real)) < 0.02
    real["hits"] = np.where(some, real["tries"] + 1 + real["hits"], real["hits"])
    found = asked(rows_of(real, 400), rows_of(games(1), 400))
    assert set(found) == {"home given hits"}


def bills(seed: int, units: int = 400) -> pd.DataFrame:
    """Return bills whose total is the sum of three parts, most of them nothing."""
    rng = np.random.default_rng(seed)
    count = 5 * units
    parts = {
        name: np.where(rng.random(count) < share, rng.gamma(1.0, 90.0, count).round(2), 0.0)
        for name, share in (("doctor", 0.7), ("drugs", 0.5), ("hospital", 0.15))
    }
    frame = pd.DataFrame({**parts, "income": rng.normal(9000, 2000, count)})
    frame["total"] = frame["doctor"] + frame["drugs"] + frame["hospital"]
    return frame[["doctor", "drugs", "total", "hospital", "income"]]


def test_a_total_of_its_parts_is_one_rule() -> None:
    found = asked(rows_of(bills(0), 400), rows_of(bills(1), 400))
    sums = [one for one in found.values() if " = " in one.rule.says]
    (one,) = sums
    assert one.rule.says == "total = doctor + drugs + hospital"
    assert not one.lost
    made = bills(1)
    made["total"] = made["total"] * 1.1
    (broken,) = [
        one
        for one in asked(rows_of(bills(0), 400), rows_of(made, 400)).values()
        if " = " in one.rule.says
    ]
    assert broken.lost
    assert broken.share.value < 0.5
    loose = bills(0)
    loose["total"] += np.random.default_rng(4).normal(0, 20, len(loose))
    rules = asked(rows_of(loose, 400), rows_of(bills(1), 400)).values()
    assert not any(" = " in one.rule.says for one in rules)


def test_columns_and_rows_are_capped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MOST_COLUMNS", 4)
    assert asked(REAL, shop(1)) == {}
    monkeypatch.setattr(judging, "MOST_COLUMNS", 60)
    monkeypatch.setattr(judging, "RULE_ROWS", 300)
    assert "later given age" in asked(REAL, shop(1))


def test_a_report_names_broken_rules_among_what_rows_are_not_useful_for() -> None:
    def broken(made: Rows) -> list[str]:
        found = usefulness(REAL, made, Streams(0))
        assert isinstance(found, Usefulness)
        assert found.rules
        return [text for text in problems_of(found) if text.startswith("what depends on")]

    assert broken(shop(1)) == []
    assert any("later given age" in text for text in broken(shuffled(shop(1), "later")))


def stays(seed: int, *, share: float = 0.0) -> Rows:
    """Return visits of people who stay on one ward, in one site of its town, and with a number.

    Args:
        seed: of all draws.
        share: of the rows whose next ward, and whose site, is any one.
    """
    rng = np.random.default_rng(seed)
    ward = np.repeat(rng.choice(["A", "B", "C", "D"], 400), 5)
    site = np.char.add(ward, np.repeat(rng.choice(["1", "2"], 400), 5))
    ends = np.arange(2000) % 5 == 4
    later = np.where(rng.random(2000) < share, rng.choice(["A", "B", "C", "D"], 2000), ward)
    other = np.where(rng.random(2000) < share, rng.permutation(site), site)
    cost = rng.normal(50, 10, 2000)
    tax = np.where(rng.random(2000) < share / 2, rng.permutation(cost), cost) * 0.2
    frame = pd.DataFrame(
        {
            "ward": names(*ward),
            "site": names(*other),
            "cost": cost,
            "tax": tax,
            "next ward": names(*later).mask(ends),
            "next site": names(*other).mask(ends),
        }
    )
    return Rows(
        frame=frame,
        state=("ward", "site"),
        action=("cost",),
        successor=("next ward", "next site"),
        units=np.repeat(np.arange(400), 5).astype(np.uint64),
        ends=ends,
        reward="tax",
        end=None,
    )


def test_rules_that_say_one_thing_again_are_shown_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten rules shown were about one lasting column, and others had no place."""
    for name in ("_areas", "_taught", "_chosen"):
        monkeypatch.setattr(module, name, lambda *_: ())
    found = usefulness(stays(0), stays(1, share=0.4), Streams(0))
    assert isinstance(found, Usefulness)
    assert found.follows == {"ward": "site", "next ward": "site", "next site": "site"}
    lost = [one for one in found.rules if one.lost]
    about = [set(one.share.columns) for one in lost]
    assert sum(columns <= {"ward", "site", "next ward", "next site"} for columns in about) > 2
    shown = told_once(lost, found.follows)
    assert [{*one.share.columns} for one in shown[1:]] == [{"tax", "cost"}]
    assert shown[0] is lost[0]
    lines = [text for text in problems_of(found) if text.startswith("what depends on")]
    assert len(lines) == 2
    assert lines[0].endswith(" (1 more such line on columns that follow from site)")


def test_of_rules_that_are_broken_alike_the_plainer_ones_come_first() -> None:
    def rule(kind: str, value: float) -> JudgedRule:
        never = NeverTogether(target=kind, given="x", never=np.ones((1, 1), bool), example=("", ""))
        plain = NotAbove(target=kind, given="x")
        share = Judged(name=kind, value=value, reference=1, lowest=1, highest=1)
        return JudgedRule(rule=plain if kind == "plain" else never, share=share)

    found = [rule("never", 0.501), rule("plain", 0.504), rule("never", 0.45), rule("plain", 0.51)]
    ordered = sorted(found, key=judging.place_of)
    assert [one.share.value for one in ordered] == [0.45, 0.504, 0.501, 0.51]


def test_what_ends_with_a_row_tells_no_rule_of_ends() -> None:
    """Only rows that do not end have a next state."""
    rng = np.random.default_rng(0)
    ends = np.arange(2000) % 5 == 4
    state = rng.normal(size=2000)
    frame = pd.DataFrame(
        {
            "s": state,
            "a": names(*rng.integers(2, size=2000)),
            "r": rng.normal(size=2000),
            "over": names(*np.where(ends, "yes", "no")),
            "next s": np.where(ends, np.nan, rng.normal(size=2000)),
            "next t": np.where(ends, np.nan, rng.integers(3, size=2000)),
        }
    )
    rows = Rows(
        frame=frame,
        state=("s",),
        action=("a",),
        successor=("next s", "next t"),
        units=np.repeat(np.arange(400), 5).astype(np.uint64),
        ends=ends,
        reward="r",
        end="over",
    )
    assert asked(rows, rows) == {}
