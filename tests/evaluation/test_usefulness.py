"""What rows are worth: bad ones are called so by name, other real samples are not."""

import dataclasses
import re

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from distributed_privrl.core.random import Streams
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.evaluation import usefulness as module
from distributed_privrl.evaluation.conditional import explained, targets_of
from distributed_privrl.evaluation.judged import Judged
from distributed_privrl.evaluation.means import mean_gaps, mean_problems
from distributed_privrl.evaluation.problems import problems_of
from distributed_privrl.evaluation.relations import kept_relations, kept_weak_relations
from distributed_privrl.evaluation.table_measures import association
from distributed_privrl.evaluation.usefulness import Usefulness, usefulness
from tests.evaluation.named import names, numbers


@pytest.fixture
def nothing_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees and forests are left out: most of the time, where another measure is looked at."""
    for name in ("_areas", "_taught", "_chosen"):
        monkeypatch.setattr(module, name, lambda *_: ())


def clinic(units: int, seed: int, *, steps: int = 5) -> Rows:
    """Return patients whose ward stays, whose dose follows their age, and their gain the dose."""
    rng = np.random.default_rng(seed)
    count = units * steps
    ward = np.repeat(rng.choice(["A", "B", "ICU"], units, p=[0.6, 0.37, 0.03]), steps)
    age = np.repeat(rng.normal(50, 10, units).round(), steps) + np.tile(np.arange(steps), units)
    dose = np.where(age + rng.normal(0, 4, count) > 50, "high", "low")
    gain = (dose == "high") * 2.0 + rng.normal(0, 0.5, count)
    ends = np.arange(count) % steps == steps - 1
    frame = pd.DataFrame(
        {
            "ward": names(*ward),
            "age": age,
            "site": 1.0,
            "dose": names(*dose),
            "gain": gain,
            "next ward": names(*ward).mask(ends),
            "next age": np.where(ends, np.nan, age + 1),
            "next site": np.where(ends, np.nan, 1.0),
            "over": names(*np.where(ends, "yes", "no")),
        }
    )
    return Rows(
        frame=frame,
        state=("ward", "age", "site"),
        action=("dose",),
        successor=("next ward", "next age", "next site"),
        units=np.repeat(np.arange(units), steps).astype(np.uint64),
        ends=ends,
        reward="gain",
        end="over",
    )


def with_columns(rows: Rows, **columns: object) -> Rows:
    return dataclasses.replace(rows, frame=rows.frame.assign(**columns))


def shuffled(rows: Rows, *columns: str) -> Rows:
    rng = np.random.default_rng(9)
    order = {name: rng.permutation(len(rows)) for name in columns}
    return with_columns(
        rows,
        **{
            name: rows.frame[name].iloc[places].reset_index(drop=True)
            for name, places in order.items()
        },
    )


def judged(real: Rows, synthetic: Rows) -> Usefulness:
    found = usefulness(real, synthetic, Streams(0))
    assert isinstance(found, Usefulness)
    return found


REAL = clinic(400, 0)


@pytest.mark.parametrize("seed", [1, 2])
def test_another_real_sample_is_called_useful(seed: int) -> None:
    assert problems_of(judged(REAL, clinic(300, seed))) == []
    assert problems_of(judged(clinic(40, seed), clinic(40, seed + 10))) == []


def test_a_lost_relation_is_named_with_what_follows_from_it() -> None:
    found = judged(REAL, shuffled(clinic(400, 1), "gain"))
    assert found.pairs[0].name == "dose and gain"
    assert found.pairs[0].real > 0.8 > 0.1 > abs(found.pairs[0].synthetic)
    assert found.pairs[0].reference < 0.1
    problems = problems_of(found)
    assert any(text.startswith("how dose and gain go together: 0.8") for text in problems)
    assert any(text.startswith("learning gain from state and action") for text in problems)
    areas = {one.name: one.value for one in found.areas}
    assert areas["s, a, r"] > areas["s, a"] + 0.1
    assert not any("ward" in text for text in problems)
    assert found.associations["dose", "gain"] < -0.7


def test_an_action_that_no_longer_follows_from_the_state_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_areas", lambda *_: ())  # nobody looks at them
    (kept,) = judged(REAL, clinic(400, 1)).chosen
    assert kept.name == "dose"
    assert kept.value > 0.8 * kept.lowest > 0.1
    made = clinic(400, 1)
    rng = np.random.default_rng(3)
    dose = np.where(rng.random(len(made)) < 0.5, "high", "low")
    gain = (dose == "high") * 2.0 + rng.normal(0, 0.5, len(made))
    found = judged(REAL, with_columns(made, dose=names(*dose), gain=gain))
    said = [text for text in problems_of(found) if text.startswith("learning ")]
    assert [text.split(":")[0] for text in said] == ["learning how dose is chosen from state"]
    assert found.chosen[0].value < 0.1


def test_a_lost_column_a_lost_event_and_lost_time_are_named() -> None:
    made = clinic(400, 1)
    frame = made.frame
    healthy = frame["ward"].astype(object).replace("ICU", "A").astype(frame["ward"].dtype)
    made = shuffled(with_columns(made, ward=healthy, age=frame["age"] + 10), "next ward")
    problems = problems_of(judged(REAL, made))
    assert any(text.startswith("how age is distributed: distance 0.3") for text in problems)
    assert any(text.startswith("how often ward is ICU: 0.00% of synth") for text in problems)
    assert any(text.startswith("how often ward stays over time: 1.00 in") for text in problems)
    assert any(text.startswith("learning next ward from state and") for text in problems)


@pytest.mark.usefixtures("nothing_learned")
def test_what_one_in_twelve_has_does_not_vanish_unseen() -> None:
    """Its column is off by as little as 8 %, and it was too frequent to be judged by itself."""

    def with_gaps(rows: Rows, share: float) -> Rows:
        gaps = np.random.default_rng(4).random(len(rows)) < share
        return with_columns(rows, gap=names(*np.where(gaps, "yes", "no")))

    def judged_gaps(share: float) -> list[str]:
        real, made = with_gaps(REAL, 0.08), with_gaps(clinic(400, 1), share)
        state = (*REAL.state, "gap")
        real, made = (dataclasses.replace(rows, state=state) for rows in (real, made))
        return [text for text in problems_of(judged(real, made)) if "gap" in text]

    (line,) = judged_gaps(0.001)
    assert line.startswith("how often gap is yes: 0.")
    assert not judged_gaps(0.08)


def test_the_worst_of_each_check_comes_before_the_second_of_any() -> None:
    """All columns came first, then all pairs; rules stood below thirty lines."""
    made = shuffled(clinic(400, 1), "gain", "next ward", "next age")
    made = with_columns(made, age=made.frame["age"] + 10, gain=made.frame["gain"] + 3)
    found = problems_of(judged(REAL, made))
    first = {
        words: next(place for place, text in enumerate(found) if words in text)
        for words in (
            "is distributed: ",
            "the mean of gain: ",
            "go together: ",
            "over time: ",
            "what depends on ",
            "they explain ",
            "is chosen from ",
            "standing in for real rows",
        )
    }
    assert sorted(first.values()) == list(range(len(first))), found
    assert sum("is distributed: " in text for text in found) > 1
    assert sum("over time: " in text for text in found) > 1


@pytest.mark.usefixtures("nothing_learned")
@pytest.mark.parametrize("factor", [8, 0.3])
def test_a_mean_that_few_rows_make_is_judged(factor: float) -> None:
    """Of spikes in two rows of a hundred, whose distances hardly see how large they are."""

    def spiked(rows: Rows, seed: int, size: float) -> Rows:
        rng = np.random.default_rng(seed)
        spikes = np.where(rng.random(len(rows)) < 0.02, rng.normal(size, size / 10, len(rows)), 0)
        return with_columns(rows, gain=spikes)

    real = spiked(REAL, 1, 250)
    same = judged(real, spiked(clinic(400, 1), 2, 250))
    assert not any("the mean of" in text for text in problems_of(same))
    assert {one.name for one in same.means} == {"age", "gain"}
    found = judged(real, spiked(clinic(400, 1), 2, 250 * factor))
    (line,) = [text for text in problems_of(found) if text.startswith("the mean of")]
    assert re.fullmatch(r"the mean of gain: [\d.]+ in synthetic rows, [45]\.\d+ in real ones", line)
    assert not any("is distributed" in text for text in problems_of(found))
    worst = found.means[0]
    assert worst.name == "gain"
    assert worst.synthetic == pytest.approx(factor * worst.real, rel=0.4)


def test_means_by_hand() -> None:
    real = pd.DataFrame({"x": [0.0, 0, 4, np.nan], "same": 1.0, "ward": names(*"ABAB")})
    other = pd.DataFrame({"x": [np.nan, 8.0], "same": [2.0, 2.0], "ward": names("A", "B")})
    expected = {"x": pytest.approx((8 - 4 / 3) / (4 / 3))}
    assert mean_gaps(real, other, ["x", "same", "ward"]) == expected
    assert mean_gaps(real, other[:1], ["x"]) == {}, "no number"
    assert mean_gaps(real[3:], other, ["x"]) == {}, "no real one"


def test_a_large_mean_is_told_without_a_fraction() -> None:
    gap = Judged(
        name="rent",
        value=0.5,
        reference=0.1,
        lowest=0.1,
        highest=0.2,
        real=61234.5,
        synthetic=998.76,
    )
    (problem,) = mean_problems([gap, dataclasses.replace(gap, value=0.44)])
    assert problem.text == "the mean of rent: 999 in synthetic rows, 61,234 in real ones"


@pytest.mark.usefixtures("nothing_learned")
def test_what_a_category_has_to_do_with_heavy_tails_is_seen() -> None:
    """A few rows far out decide of sums of squares, and hide that one ward's costs are doubled."""

    def costs(seed: int, *, apart: bool) -> Rows:
        rng, rows = np.random.default_rng(seed), clinic(400, seed)
        larger = (rows.frame["ward"] == "B").to_numpy() & apart
        return with_columns(rows, gain=np.exp(rng.normal(1.2 * larger, 2.5)))

    found = judged(costs(0, apart=True), costs(1, apart=False))
    (pair,) = [one for one in found.pairs if one.name == "ward and gain"]
    assert pair.real > 0.18 > 0.1 > pair.synthetic
    assert any(text.startswith("how ward and gain go together: 0.") for text in problems_of(found))
    raw = association(costs(0, apart=True).frame["ward"], costs(0, apart=True).frame["gain"])
    assert raw < 0.12, "of the raw values"


@pytest.mark.usefixtures("nothing_learned")
def test_lengths_of_trajectories_are_compared_where_both_have_some() -> None:
    long = judged(REAL, clinic(200, 1, steps=9))
    assert long.columns[0].name == "steps of a trajectory"
    assert long.columns[0].value == 1
    alone = clinic(200, 1)
    alone = dataclasses.replace(alone, ends=np.ones(len(alone), bool))
    found = judged(REAL, alone)
    assert not any("trajectory" in one.name for one in found.columns)
    assert not any("dose" in one.name for one in found.over_time), "an action needs the next row"
    assert any("ward" in one.name for one in found.over_time), "a state has its successor"


@pytest.mark.usefixtures("nothing_learned")
def test_what_changes_with_time_is_judged_where_both_have_trajectories() -> None:
    risen = with_columns(REAL, gain=REAL.frame["gain"] + np.tile(np.arange(5.0), 400))
    found = judged(risen, REAL)
    lost = {one.name: one for one in found.pairs}[f"gain and {module.TIME}"]
    assert lost.real > 0.5 > 0.1 > abs(lost.synthetic)
    problems = problems_of(found)
    assert any(text.startswith(f"how gain and {module.TIME} go together: 0.") for text in problems)
    assert not any(module.TIME in one.name for one in judged(risen, risen).columns)
    alone = dataclasses.replace(risen, ends=np.ones(len(risen), bool))
    assert not any(module.TIME in one.name for one in judged(alone, REAL).pairs)


@pytest.mark.usefixtures("nothing_learned")
def test_a_spread_that_grows_along_trajectories_is_judged() -> None:
    """As wages do; the means of steps, which pairs judge, stay as they are."""
    rng, times = np.random.default_rng(0), np.tile(np.arange(5.0), 400)
    fanned = with_columns(REAL, gain=rng.normal(0, 1 + times))
    flat = with_columns(REAL, gain=rng.normal(0, 3, len(times)))
    name = "widely gain varies among trajectories"
    found = judged(fanned, flat)
    (one,) = [one for one in found.over_time if one.name == name]
    assert one.real > 0.3 > 0.1 > abs(one.synthetic)
    assert any(text.startswith(f"how {name} over time: 0.") for text in problems_of(found))
    pairs = {one.name: one for one in found.pairs}
    assert abs(pairs[f"gain and {module.TIME}"].real) < 0.1
    assert not any(name in text for text in problems_of(judged(fanned, fanned)))
    alone = dataclasses.replace(fanned, ends=np.ones(len(fanned), bool))
    assert not any(one.name == name for one in judged(alone, flat).over_time)


def pupils(seed: int, *, keep: float) -> Rows:
    """Return pupils of four grades, whose scores grow, and are good if they were a year before."""
    rng, count, years = np.random.default_rng(seed), 500, 3
    first = rng.integers(0, 3, count)
    score, scores = rng.normal(size=count), []
    for _ in range(years + 1):
        scores.append(score)
        score = keep * score + (1 - keep**2) ** 0.5 * rng.normal(size=count)
    beside = np.stack(scores, axis=1)
    grade = first[:, None] + np.arange(years + 1.0)
    grown = 40 * grade - 4 * grade**2 + 15 * beside
    ends = np.tile(np.arange(years) == years - 1, count)
    frame = pd.DataFrame(
        {
            "grade": grade[:, :-1].ravel(),
            "score": grown[:, :-1].ravel(),
            "mood": rng.normal(size=count * years),
            "next grade": np.where(ends, np.nan, grade[:, 1:].ravel()),
            "next score": np.where(ends, np.nan, grown[:, 1:].ravel()),
            "next mood": np.where(ends, np.nan, rng.normal(size=count * years)),
            "over": names(*np.where(ends, "yes", "no")),
        }
    )
    return Rows(
        frame=frame,
        state=("grade", "score", "mood"),
        action=(),
        successor=("next grade", "next score", "next mood"),
        units=np.repeat(np.arange(count), years).astype(np.uint64),
        ends=ends,
        reward=None,
        end="over",
    )


@pytest.mark.usefixtures("nothing_learned")
def test_growth_does_not_hide_that_pupils_forget_what_they_were() -> None:
    """All pairs of columns are right; among pupils of a grade a score tells little of the next."""
    found = judged(pupils(0, keep=0.7), pupils(1, keep=0.2))
    name = "score and the next step's go together"
    over_time = {one.name: one for one in found.over_time}
    assert over_time[name].synthetic > 0.75 * over_time[name].real > 0.6
    among = over_time[f"{name} where grade is the same"]
    assert among.real == pytest.approx(0.69, abs=0.05)
    assert among.synthetic == pytest.approx(0.2, abs=0.05)
    told = [text for text in problems_of(found) if "where grade is the same" in text]
    assert told[0].startswith(f"how {name} where grade is the same over time: 0.")
    assert not any("mood" in one and "the same" in one for one in over_time)
    assert not any(
        "where grade" in text
        for text in problems_of(judged(pupils(0, keep=0.7), pupils(2, keep=0.7)))
    )


@pytest.mark.usefixtures("nothing_learned")
def test_a_hump_along_trajectories_is_judged() -> None:
    """As careers are; neither ranks nor spreads see where the middle lies."""
    rng, times = np.random.default_rng(0), np.tile(np.arange(5.0), 400)
    hump = rng.normal(3 * (times == 2), 1)
    flat = rng.permutation(hump)
    found = judged(with_columns(REAL, gain=hump), with_columns(REAL, gain=flat))
    (one,) = [one for one in found.profiles if one.name == "gain"]
    assert one.value > 0.5 > 0.2 > one.reference
    said = "how the mean of gain changes along trajectories: off by 0."
    assert any(text.startswith(said) for text in problems_of(found))
    again = judged(with_columns(REAL, gain=hump), with_columns(REAL, gain=hump + 5))
    assert not any("along trajectories" in text for text in problems_of(again)), "all steps alike"
    alone = dataclasses.replace(REAL, ends=np.ones(len(REAL), bool))
    assert judged(alone, REAL).profiles == ()


def test_constants_are_left_out_and_gaps_are_no_error() -> None:
    made = clinic(400, 1)
    holes = np.arange(len(made)) % 3 == 0
    made = with_columns(
        made,
        site=np.where(np.arange(len(made)) % 2 == 0, 2.0, 1.0),
        age=made.frame["age"].mask(holes),
        ward=made.frame["ward"].mask(holes),
        gain=numbers(*np.where(holes, np.nan, made.frame["gain"])),
    )
    real = with_columns(REAL, gain=REAL.frame["gain"].mask(np.arange(len(REAL)) % 5 == 0))
    found = judged(real, made)
    assert found.constants == {"site": 0.5}
    shown = (*found.columns, *found.pairs, *found.over_time, *found.taught)
    assert not any("site" in one.name for one in shown)
    assert all(np.isfinite([one.value, one.reference]).all() for one in shown)
    (problem,) = problems_of(found)
    assert problem.startswith("standing in for real rows"), "the site gives them away, no gap does"


def test_too_few_units_are_told() -> None:
    assert str(usefulness(clinic(7, 0), clinic(50, 1), Streams(0))).startswith(
        "not applicable: 7 real units"
    )


def test_rows_that_nothing_follows_are_judged() -> None:
    """As of a table whose schema has no next observation, and may have no end."""

    def alone(rows: Rows) -> Rows:
        kept = [*rows.state, *rows.action, rows.reward]
        return dataclasses.replace(rows, frame=rows.frame[kept], successor=(), end=None)

    assert problems_of(judged(alone(REAL), alone(clinic(300, 1)))) == []
    lost = problems_of(judged(alone(REAL), alone(shuffled(clinic(300, 1), "gain"))))
    assert any(text.startswith("how dose and gain go together") for text in lost)


def test_more_rows_than_are_judged_are_drawn_by_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_JUDGED", 500)
    found = judged(REAL, clinic(400, 1))
    assert 195 <= found.units <= 205
    assert (found.rows, found.made) == (5 * found.units, 500)
    assert problems_of(found) == []


@pytest.mark.usefixtures("nothing_learned")
def test_everybody_is_judged_by_some_rows_where_rows_are_independent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def alone(rows: Rows) -> Rows:
        return dataclasses.replace(rows, ends=np.ones(len(rows), bool))

    monkeypatch.setattr(module, "MOST_JUDGED", 2000)
    real = alone(clinic(400, 0, steps=30))
    found = judged(real, alone(clinic(400, 1, steps=30)))
    assert (found.units, found.rows, found.made) == (400, 4000, 2000)
    assert problems_of(found) == []


def test_wide_tables_are_judged_by_fewer_rows() -> None:
    assert [module.judged_rows(columns) for columns in (5, 15, 60, 1000)] == [
        100_000,
        100_000,
        25_000,
        10_000,
    ]


def test_what_is_explained_by_hand() -> None:
    """The reward is the dose, the end a coin: all of one can be foretold, nothing of the other."""
    rng = np.random.default_rng(0)
    rows = clinic(200, 0)
    dose = (rows.frame["dose"] == "high").to_numpy()
    coin = names(*rng.choice(["no", "yes"], len(rows)))
    rows = with_columns(rows, gain=dose * 1.0, over=coin)
    assert explained(rows, rows.select(np.arange(400)), ["gain"], rng)["gain"] > 0.99
    other = with_columns(rows, over=names(*rng.choice(["no", "yes"], len(rows))))
    assert explained(rows, other, ["over"], rng)["over"] < 0.05
    assert explained(rows, rows.select(np.arange(19)), ["gain"], rng) == {}
    assert explained(rows, with_columns(rows, gain=1.0), ["gain"], rng) == {}
    assert set(targets_of(rows)) == {"reward", "next state", "end"}
    alone = dataclasses.replace(rows, successor=(), end=None)
    assert set(targets_of(alone)) == {"reward"}


def with_pressure(rows: Rows, seed: int, strength: float = 0.3) -> Rows:
    """Return rows with a number that goes with the age as loosely as said."""
    age = stats.zscore(rows.frame["age"].to_numpy(np.float64))
    noise = np.random.default_rng(seed).standard_normal(len(rows))
    return with_columns(rows, pressure=strength * age + np.sqrt(1 - strength**2) * noise)


def test_a_loose_relation_of_which_nothing_is_left_is_named_and_counted() -> None:
    real = dataclasses.replace(with_pressure(REAL, 1), state=(*REAL.state, "pressure"))
    made = dataclasses.replace(with_pressure(clinic(400, 5), 2), state=real.state)
    same = judged(real, made)
    assert problems_of(same) == []
    whole = kept_relations(same.pairs)
    assert whole.lost == ()
    found = judged(real, shuffled(made, "pressure"))
    assert any("pressure" in problem for problem in problems_of(found))
    kept = kept_relations(found.pairs)
    assert kept.kept == whole.kept - len(kept.lost) - len(kept.faded)
    assert kept.lost[0].name == "age and pressure"


@pytest.mark.parametrize(
    ("real", "synthetic", "value", "highest", "told"),
    [
        (0.225, 0.056, 0.188, 0.067, "faded"),  # a quarter is left: not 3 times .067 away
        (0.225, 0.010, 0.215, 0.067, "lost"),
        (0.225, 0.180, 0.070, 0.067, "kept"),  # most is left
        (0.225, 0.100, 0.060, 0.067, "kept"),  # another real sample is as far off
        (-0.225, -0.056, 0.188, 0.067, "faded"),
        (-0.225, 0.150, 0.375, 0.150, "lost"),
    ],
)
def test_a_relation_that_fades_among_samples_that_differ_is_not_kept(
    real: float, synthetic: float, value: float, highest: float, told: str
) -> None:
    pair = Judged(
        name="one and other",
        value=value,
        reference=highest,
        lowest=highest,
        highest=highest,
        real=real,
        synthetic=synthetic,
    )
    kept = kept_relations([pair])
    assert (kept.kept, len(kept.lost), len(kept.faded)) == (
        told == "kept",
        told == "lost",
        told == "faded",
    )


@pytest.mark.parametrize(
    ("real", "synthetic", "value", "highest", "told"),
    [
        (0.087, 0.021, 0.067, 0.012, "lost"),
        (-0.051, 0.000, 0.050, 0.006, "lost"),
        (0.048, 0.023, 0.025, 0.012, "faded"),
        (0.048, 0.045, 0.003, 0.006, "kept"),
        (0.048, 0.350, 0.302, 0.006, "lost"),  # there is another relation instead
        (0.048, 0.000, 0.048, 0.017, None),  # real samples differ by a third of it
        (0.029, 0.000, 0.029, 0.001, None),
        (0.120, 0.000, 0.120, 0.001, None),  # not weak
    ],
)
def test_weak_relations_are_judged_where_they_are_clear(
    real: float, synthetic: float, value: float, highest: float, told: str | None
) -> None:
    pair = Judged(
        name="one and other",
        value=value,
        reference=highest,
        lowest=highest,
        highest=highest,
        real=real,
        synthetic=synthetic,
    )
    kept = kept_weak_relations([pair])
    assert (kept.relations, kept.kept, len(kept.lost), len(kept.faded)) == (
        told is not None,
        told == "kept",
        told == "lost",
        told == "faded",
    )


@pytest.mark.usefixtures("nothing_learned")
def test_no_weak_relation_is_seen_where_none_is() -> None:
    seen = 0
    for seed in range(6):
        real = with_pressure(clinic(400, 2 * seed), seed, 0.0)
        real = dataclasses.replace(real, state=(*real.state, "pressure"))
        weak = kept_weak_relations(
            tuple(one for one in judged(real, real).pairs if "pressure" in one.name)
        )
        seen += weak.relations
    assert seen <= 1


@pytest.mark.usefixtures("nothing_learned")
@pytest.mark.parametrize("strength", [0.1, 0.15, 0.3])
def test_no_relation_of_another_real_sample_is_lost(strength: float) -> None:
    for seed in range(4):
        real = with_pressure(clinic(60, 2 * seed), seed, strength)
        other = with_pressure(clinic(60, 2 * seed + 1), seed + 100, strength)
        state = (*real.state, "pressure")
        pairs = judged(
            dataclasses.replace(real, state=state), dataclasses.replace(other, state=state)
        ).pairs
        assert kept_relations(pairs).lost == (), seed


@pytest.mark.usefixtures("nothing_learned")
def test_categories_that_no_synthetic_row_has_are_counted() -> None:
    made = with_columns(clinic(400, 5), ward=names(*clinic(400, 5).frame["ward"]))
    ward = made.frame["ward"].astype(object).replace("ICU", "A")
    found = judged(REAL, with_columns(made, ward=names(*ward)))
    assert found.vanished == {"ward is ICU": int((REAL.frame["ward"] == "ICU").sum())}
    assert judged(REAL, made).vanished == {}


def survey(seed: int, *, old_deaths: float) -> Rows:
    """Return people of whom the old ones are few, and nearly all have died, or a share of them."""
    rng = np.random.default_rng(seed)
    age = np.where(rng.random(4000) < 0.02, 95.0, rng.integers(50, 80, 4000))
    chance = np.where(age > 80, old_deaths, 0.3)
    died = (rng.random(4000) < chance).astype(np.float64)
    frame = pd.DataFrame({"age": age, "dose": rng.normal(size=4000), "died": died})
    units = np.arange(4000, dtype=np.uint64)
    ends = np.ones(4000, dtype=bool)
    return Rows(
        frame=frame,
        state=("age",),
        action=("dose",),
        successor=(),
        units=units,
        ends=ends,
        reward="died",
        end=None,
    )


@pytest.mark.usefixtures("nothing_learned")
def test_what_few_people_have_is_judged_among_them() -> None:
    real = survey(1, old_deaths=0.95)
    assert not any(
        "where" in line for line in problems_of(judged(real, survey(2, old_deaths=0.95)))
    )
    found = judged(real, survey(2, old_deaths=0.5))
    (line,) = [line for line in problems_of(found) if "where" in line]
    assert line.startswith("how often died is 1 where age is 95 or more: ")
    assert found.rates[0].reference == pytest.approx(0.95, abs=0.06)
    assert not judged(real, survey(2, old_deaths=0.5).select(np.arange(4000) < 400)).rates
