"""Cells of utility tables: names by which finished ones are found, what is kept, what is shared."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cells, utility_cells, utility_expert, utility_primorl
from distributed_privrl.core.config import with_overrides
from distributed_privrl.core.yaml_files import read_yaml
from distributed_privrl.experiments.registry import parse_config

EXPERT = {"environment": "cartpole", "agent": "discrete_cql", "seed": 2}
NAMES = [
    (
        utility_expert.Cell(variant="paper's thresholds", epsilon=2.5, **EXPERT),  # type: ignore[arg-type]
        "cartpole-discrete_cql-paper's thresholds-2.5",
        "cartpole_discrete_cql_paper_s_thresholds_2_5-2",
    ),
    (
        utility_expert.Cell(variant="non_private", epsilon=None, **EXPERT),  # type: ignore[arg-type]
        "cartpole-discrete_cql-non_private-none",
        "cartpole_discrete_cql_non_private_none-2",
    ),
    (
        utility_primorl.Cell(task="pendulum", variant="flat, max_aleatoric", epsilon=1.0, seed=0),
        "pendulum-flat, max_aleatoric-1",
        "pendulum_flat__max_aleatoric_1-0",
    ),
    (
        utility_cells.Cell(maze="umaze", variant="no curiosity", epsilon=0.1),
        "umaze-no curiosity-0.1",
        "umaze-no_curiosity-0.1",
    ),
    (
        utility_cells.Cell(maze="eval-large", variant="real", epsilon=None),
        "eval-large-real-none",
        "eval-large-real-none",
    ),
]


@pytest.mark.parametrize(("cell", "row", "name"), NAMES)
def test_cells_keep_the_names_under_which_earlier_commands_left_them(
    cell: cells.Cell, row: str, name: str, tmp_path: Path
) -> None:
    assert (cell.row, cell.name) == (row, name)
    assert cells.file_of(cell, tmp_path) == tmp_path / "cells" / f"{name}.json"


def test_what_is_kept_is_not_made_again(tmp_path: Path) -> None:
    path, made = tmp_path / "cells" / "a.json", []

    def make() -> dict[str, Any]:
        made.append(1)
        return {"return": 2.5, "prefixes": None}

    path.parent.mkdir()
    assert cells.kept(path, make) == cells.kept(path, make) == {"return": 2.5, "prefixes": None}
    assert len(made) == 1
    assert json.loads(path.read_text()) == make()


def test_a_cell_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> dict[str, Any]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cells.kept(tmp_path / "a.json", fail)
    assert not list(tmp_path.iterdir())


def test_seeds_of_a_row_come_together_in_order() -> None:
    def row(variant: str, seed: int) -> dict[str, Any]:
        return {"task": "pendulum", "variant": variant, "epsilon": 0.3, "seed": seed, "return": 1}

    rows = [row("ours", 0), row("mopo", 0), row("ours", 1)]
    lines = cells.lines_of(rows, utility_primorl.Cell)
    assert lines == {"pendulum-ours-0.3": [rows[0], rows[2]], "pendulum-mopo-0.3": [rows[1]]}


@pytest.mark.parametrize("epsilon", [None, 0.5])
def test_the_bounds_are_found_from_any_folder(
    epsilon: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    values = read_yaml(cells.CONFIGURATIONS / "primorl_pendulum.yaml")
    changes = cells.changes_of(values, dataset="pendulum/replay-v0", epsilon=epsilon, seed=4)
    config: Any = parse_config(with_overrides(values, changes), source="cell")
    assert config.data.bounds.exists()
    assert (config.seed, config.data.sensitive) == (4, "pendulum/replay-v0")
    assert (config.privacy.epsilon, config.runtime.workers) == (epsilon, 1)
