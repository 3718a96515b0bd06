"""The sweeps of tune_configs/sweeps: each loads, is planned, and says how to get its rows."""

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.data.store import FOLDER_VARIABLE, DatasetStore
from distributed_privrl.experiments.sweeps.config import (
    PrivateSelection,
    PublicSelection,
    load_sweep,
)
from distributed_privrl.experiments.sweeps.costs import cost_of
from distributed_privrl.experiments.sweeps.points import points_of
from distributed_privrl.privacy.accounting import coarse_figures
from tests.docs.pages import ROOT, SWEEPS, command_lines
from tests.docs.smaller import smaller

FOLDER = ROOT / "tune_configs" / "sweeps"
MINUTES = {
    "apvi_icu_sepsis": 1.8,
    "expert_cartpole": 7.8,
    "figure6_privorl_n": 18,
    "figure8_privorl_ar_j": 16,
    "marginals_j_maze2d": 8.0,
    "marginals_maze2d": 10.1,
    "primorl_pendulum": 27,
    "privorl_ar_j_maze2d": 1800,
    "privorl_ar_maze2d": 130,
    "privorl_j_maze2d": 32,
    "privorl_n_maze2d": 230,
    "vapvi_linear_mdp": 0.62,
}
"""What their comments round."""


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("path", SWEEPS, ids=named)
def test_a_ready_sweep_says_what_to_run(path: Path) -> None:
    asked, lines = load_sweep(path), command_lines(path)
    collected = {re.search(r"--dataset (\S+)", line)[1] for line in lines if " collect " in line}
    data, selection = asked.base.data, asked.selection
    own = {selection.stand_in} if isinstance(selection, PublicSelection) else {data.sensitive}
    assert collected == own | set(data.public)
    if isinstance(selection, PublicSelection):
        assert all(line.endswith("--public") for line in lines if " collect " in line)
    *_, dry, last = [line for line in lines if line.startswith("privrl sweep")]
    file = f"privrl sweep {path.relative_to(ROOT)}"
    assert dry == f"{file} --dry-run"
    assert last.startswith(f"{file} --out runs/sweep-")


@pytest.mark.parametrize("path", SWEEPS, ids=named)
def test_a_ready_sweep_is_planned_with_datasets_as_it_collects_them(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of those that stand in it reads spaces alone: small ones do."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv(FOLDER_VARIABLE, str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # speeds of this machine
    asked = load_sweep(path)
    if isinstance(asked.selection, PublicSelection):
        for line in command_lines(path):
            _, *words = shlex.split(line)
            if words[0] == "collect":
                done = CliRunner().invoke(app, [*words, *smaller(words)])
                assert done.exit_code == 0, done.output
    with coarse_figures():
        cost = cost_of(asked, DatasetStore())
    if path.stem in MINUTES:
        assert cost.minutes == pytest.approx(MINUTES[path.stem], rel=0.1)
    if isinstance(asked.selection, PrivateSelection):
        assert (cost.trials, cost.epsilon) == ((), pytest.approx(1.591, abs=1e-3))
    else:
        assert len(cost.trials) == len(points_of(asked))
        assert "hopeless" not in {one.verdict for one in cost.trials}


def test_the_figures_of_the_paper_have_their_axes() -> None:
    search = load_sweep(FOLDER / "privorl_ar_j_maze2d.yaml").search
    assert {key.rpartition(".")[2]: axis.grid for key, axis in search.items()} == {
        "curiosity_rate": (0.1, 0.2, 0.3, 0.4, 0.5),
        "horizon": (8, 16, 32, 64, 128),
        "epsilon": (1, 5, 10, 15, 20),
    }


def test_each_way_to_pay_has_a_ready_sweep() -> None:
    assert {load_sweep(path).selection.pays for path in SWEEPS} == {"public", "compose", "private"}
