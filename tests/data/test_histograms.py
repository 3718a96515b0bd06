"""Cells of named columns follow from declared facts, and each row is in one of them."""

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.histograms import NOTHING, Histogram, column_cells, counted
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.named_rows import named_rows

SCHEMA = {
    "columns": {
        "observation": ["age", "smoker", "ward", "pulse"],
        "action": "drug",
        "reward": "gain",
        "terminated": "died",
        "trajectory": "who",
    },
    "kinds": {
        "smoker": {"type": "flag", "values": ["no", "yes"]},
        "ward": {"type": "category", "values": ["A", "B", "C"], "missing": "own"},
        "pulse": {"type": "number", "missing": "indicator"},
        "drug": {"type": "category", "values": ["x", "y"]},
        "died": {"type": "flag"},
    },
    "spaces": {"observation": {"type": "box"}},
}
COLUMNS = ("observation_0", "observation_6", "reward")


@pytest.fixture
def written(store):
    source, count = np.random.default_rng(0), 60
    table = pd.DataFrame(
        {
            "who": np.arange(count) // 3,
            "age": source.integers(20, 90, count),
            "smoker": source.choice(["no", "yes"], count),
            "ward": source.choice(["A", "B", "C", None], count),
            "pulse": np.where(source.random(count) < 0.3, np.nan, source.uniform(50, 150, count)),
            "drug": source.choice(["x", "y"], count),
            "gain": source.normal(size=count),
            "died": np.arange(count) % 3 == 2,
        }
    )
    from_table(table, SCHEMA, dataset="clinic/a-v0", store=store)
    info = store.info("clinic/a-v0")
    bounds = Bounds(
        low=np.array([20.0, 50.0, -3.0]),
        high=np.array([90.0, 150.0, 3.0]),
        step=np.array([0.0, 50.0, 0.0]),
        columns=COLUMNS,
        source="test",
    )
    return info, store.read_transitions("clinic/a-v0", unit="trajectory"), bounds


def test_columns_have_the_names_and_cells_that_are_declared(written):
    info, _, bounds = written
    cells = column_cells(info, bounds, bins=4, edges={"gain": [-1.0, 1.0]})
    own = ["age", "smoker: yes", "ward", "pulse", "pulse: missing", "drug", "gain"]
    assert list(cells)[: len(own)] == own
    assert cells["age"].edges == (37.5, 55.0, 72.5)
    assert cells["pulse"].edges == (75.0, 125.0), "a cell for each of three values"
    assert cells["gain"].labels == ("below -1", "-1 to 1", "1 and above", NOTHING)
    assert cells["ward"].values == ("A", "B", "C", "missing")
    assert cells["smoker: yes"].values == ("no", "yes")
    assert cells["next age"].edges == cells["age"].edges
    for edges, message in (
        ({"gain": [1.0, 1.0]}, "must be finite and rise"),
        ({"ward": [1.0]}, "no number is called so"),
        ({"nobody": [1.0]}, "no number is called so"),
    ):
        with pytest.raises(ConfigError, match=message):
            column_cells(info, bounds, bins=4, edges=edges)


def test_each_row_is_in_one_cell_of_each_histogram(written):
    info, transitions, bounds = written
    cells = column_cells(info, bounds, bins=4, edges={})
    histograms = [Histogram((cells["age"], cells["ward"])), Histogram((cells["pulse"],))]
    rows = named_rows(transitions, np.ones(len(transitions), bool), info)
    weights = np.arange(1, len(rows) + 1)
    found = counted(histograms, rows, weights)
    first, second = np.split(found, [histograms[0].size])
    assert first.sum() == second.sum() == weights.sum()
    frame = rows.frame
    chosen = (frame["age"] < 37.5) & (frame["ward"] == "B")
    assert first.reshape(histograms[0].shape)[0, 1] == weights[chosen].sum()
    gaps = frame["pulse"].isna()
    assert gaps.any()
    assert second[-1] == weights[gaps].sum()
