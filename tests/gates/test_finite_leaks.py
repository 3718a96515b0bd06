"""Whole runs of value iteration: what may leave holds no secret."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.gates.finite_leaks import finite_run, gate_nothing_leaves, with_values
from tests.gates.leak_runs import Finished
from tests.gates.leak_secrets import Secrets
from tests.gates.leaks import scan
from tests.worlds.finite_rarities import FIRST_ID, WIDTH
from tests.worlds.sending import sent

METHODS = ("apvi", "vapvi")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Finished]:
    """Return the run of each method."""
    return {one: finite_run(tmp_path_factory.mktemp(one), one) for one in METHODS}


@pytest.mark.parametrize("method", METHODS)
def test_nothing_that_may_leave_holds_a_secret(method: str, runs: dict[str, Finished]) -> None:
    gate_nothing_leaves(runs[method])


def _counts(secrets: Secrets) -> Any:
    """Return the exact counts of a worker and time step."""
    return next(one for one in secrets.counts if (one % 256 > 0).sum() > WIDTH)


def _write(folder: Path, name: str, content: Any) -> None:
    (folder / "checkpoint" / name).write_bytes(content)


def _report(folder: Path, text: str) -> None:
    path = folder / "report.html"
    path.write_text(f"{path.read_text()} {text} ")


def _exact(secrets: Secrets, state: int = 3) -> float:
    return secrets.planted[f"the exact value of state {state}"]


LEAKS: dict[str, tuple[Callable[[Path, Secrets], Any], str]] = {
    "counts of a worker": (
        lambda folder, secrets: _write(folder, "counts", _counts(secrets).tobytes()),
        "counts holds exact counts",
    ),
    "counts as floats": (
        lambda folder, secrets: _write(
            folder, "counts", b"odd" + _counts(secrets).astype(np.float32).tobytes()
        ),
        "counts holds exact counts",
    ),
    "counts in text": (
        lambda folder, secrets: _report(folder, str(_counts(secrets).tolist())),
        "report.html holds (an )?exact count",
    ),
    "a sum in decimals": (
        lambda folder, secrets: _report(
            folder, next(one for one, what in secrets.tokens.items() if what == "an exact count")
        ),
        "report.html holds an exact count",
    ),
    "sums without noise": (
        lambda folder, secrets: _write(folder, "sums", secrets.learned[-1].tobytes()),
        "sums holds bytes of what was learned without noise",
    ),
    "sums without noise in text": (
        lambda folder, secrets: _report(folder, str(secrets.learned[-1].tolist())),
        "report.html holds (numbers that were learned without noise|an exact count)",
    ),
    "values without noise": (
        lambda folder, secrets: with_values(
            folder / "checkpoint" / "steps.safetensors", secrets.learned[1]
        ),
        "steps.safetensors holds bytes of what was learned without noise",
    ),
    "values without noise, halved in size": (
        lambda folder, secrets: _write(
            folder, "values", secrets.learned[1].astype(np.float32).tobytes()
        ),
        "values holds bytes of what was learned without noise",
    ),
    "one value in text": (
        lambda folder, secrets: _report(folder, f"it is worth {_exact(secrets):.6f}"),
        "report.html holds the exact value of state 3",
    ),
    "rewards in a column": (
        lambda folder, secrets: _write(folder, "rewards", secrets.rows[1][40:43, 0].tobytes()),
        "rewards holds bytes of sensitive rows",
    ),
    "rewards in text": (
        lambda folder, secrets: _report(folder, str(secrets.rows[1][40:43, 0].tolist())),
        "report.html holds numbers of a sensitive row",
    ),
    "rewards as workers scale them": (
        lambda folder, secrets: _write(folder, "rewards", secrets.learned[0][7:9].tobytes()),
        "rewards holds bytes of what was learned without noise",
    ),
    "a rare reward": (
        lambda folder, secrets: _write(
            folder, "edges", np.array([0, secrets.planted["a rare reward"]], np.float32).tobytes()
        ),
        "edges holds a planted number",
    ),
    "an id": (
        lambda folder, _: _report(folder, f"patient {FIRST_ID}"),
        "report.html holds the first patient's id",
    ),
    "how many there are": (
        lambda folder, secrets: _report(
            folder, f"{int(secrets.planted['the number of patients'])} patients"
        ),
        "report.html holds the number of patients",
    ),
    "a tensor that nobody knows": (
        lambda folder, _: save_file(
            {"counts": np.arange(3)}, folder / "checkpoint" / "more.safetensors"
        ),
        "more.safetensors keeps",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
@pytest.mark.parametrize("method", METHODS)
def test_the_scan_sees_a_planted_leak(
    method: str, name: str, runs: dict[str, Finished], tmp_path: Path
) -> None:
    run, (plant, message) = runs[method], LEAKS[name]
    shutil.copytree(run.folder, tmp_path / "run")
    plant(tmp_path / "run", run.secrets)
    with pytest.raises(AssertionError, match=message):
        scan(tmp_path / "run", run.secrets)


def test_the_scan_sees_which_pairs_somebody_visited(
    runs: dict[str, Finished], tmp_path: Path
) -> None:
    """Only DP-APVI's workers say so."""
    run = runs["apvi"]
    shutil.copytree(run.folder, tmp_path / "run")
    _write(tmp_path / "run", "cells", run.secrets.positions[0].tobytes())
    with pytest.raises(AssertionError, match="cells holds positions"):
        scan(tmp_path / "run", run.secrets)


@pytest.mark.parametrize("method", METHODS)
def test_the_scan_sees_a_run_whose_noise_is_nought(method: str, runs: dict[str, Finished]) -> None:
    run = runs[method]
    silent = run.folder.parent.parent / "without noise" / "run"
    with pytest.raises(AssertionError, match="holds bytes of what was learned without noise"):
        scan(silent, run.secrets)


@pytest.mark.parametrize("method", METHODS)
def test_the_scan_sees_what_is_sent(method: str, runs: dict[str, Finished]) -> None:
    run = runs[method]
    for argument in (_counts(run.secrets), run.secrets.learned[1], [FIRST_ID]):
        with pytest.raises(AssertionError, match="an argument of a worker holds"):
            scan(run.folder, run.secrets, sent=[sent(argument)])
