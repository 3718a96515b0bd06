"""A whole run of MOPO, which protects nobody: nothing leaves ``private/``."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.gates.leak_runs import Finished
from tests.gates.leaks import scan_unprotected
from tests.gates.unprotected_leaks import gate_nothing_leaves, unprotected_run
from tests.worlds.rarities import FIRST_ID
from tests.worlds.sending import sent


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return unprotected_run(tmp_path_factory.mktemp("mopo"))


def test_nothing_that_may_leave_holds_a_secret(run: Finished) -> None:
    gate_nothing_leaves(run)


def _write(folder: Path, content: bytes) -> None:
    (folder / "checkpoint" / "more").write_bytes(content)


def _report(folder: Path, text: str) -> None:
    path = folder / "report.html"
    path.write_text(f"{path.read_text()} {text} ")


def _learned(run: Finished) -> Any:
    """Return the parameters of the models."""
    return load_file(run.folder / "private" / "ensemble.safetensors")["parameters"]


def _earned(run: Finished) -> str:
    """Say what the policy earns."""
    found = json.loads((run.folder / "private" / "evaluation.json").read_text())
    return f"it earns {found[0]['returns'][0]:.6f}"


LEAKS: dict[str, tuple[Callable[[Path, Finished], Any], str]] = {
    "a row": (
        lambda folder, run: _write(folder, b"odd" + run.secrets.rows[0][777].tobytes()),
        "more holds bytes of sensitive rows",
    ),
    "an encoded row": (
        lambda folder, run: _write(folder, run.secrets.rows[1][777].tobytes()),
        "more holds bytes of sensitive rows",
    ),
    "a row in text": (
        lambda folder, run: _report(folder, str(run.secrets.rows[0][777].tolist())),
        "report.html holds numbers of a sensitive row",
    ),
    "parameters": (
        lambda folder, _: shutil.copy(
            folder / "private" / "ensemble.safetensors", folder / "checkpoint"
        ),
        "ensemble.safetensors holds bytes of what was learned",
    ),
    "parameters before the last step": (
        lambda folder, _: shutil.copy(
            folder / "private" / "checkpoint" / "initial.safetensors", folder / "checkpoint"
        ),
        "a run without privacy keeps",
    ),
    "some parameters": (
        lambda folder, run: _write(folder, _learned(run)[40:44].tobytes()),
        "more holds bytes of what was learned",
    ),
    "parameters in text": (
        lambda folder, run: _report(folder, str(_learned(run)[:9].tolist())),
        "report.html holds numbers that were learned",
    ),
    "what the policy earns": (
        lambda folder, run: _report(folder, _earned(run)),
        "report.html holds a figure",
    ),
    "the report of private/": (
        lambda folder, _: shutil.copy(folder / "private" / "report.json", folder / "report.json"),
        "report.json holds a figure",
    ),
    "an id": (
        lambda folder, _: _report(folder, f"person {FIRST_ID}"),
        "report.html holds the first person's id",
    ),
    "how many there are": (
        lambda folder, run: _report(
            folder, f"{int(run.secrets.planted['the number of people'])} people"
        ),
        "report.html holds the number of people",
    ),
    "the largest speed": (
        lambda folder, run: _write(
            folder, np.array([0, run.secrets.planted["the largest speed"]], np.float32).tobytes()
        ),
        "more holds a planted number",
    ),
    "a readable checkpoint": (
        lambda folder, _: (folder / "private" / "checkpoint" / "rounds.safetensors").chmod(0o644),
        "rounds.safetensors can be read",
    ),
    "an open folder": (
        lambda folder, _: (folder / "private" / "checkpoint").chmod(0o755),
        "checkpoint can be read",
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_scan_sees_a_planted_leak(name: str, run: Finished, tmp_path: Path) -> None:
    folder, (plant, message) = tmp_path / "run", LEAKS[name]
    shutil.copytree(run.folder, folder)
    plant(folder, run)
    with pytest.raises(AssertionError, match=message):
        scan_unprotected(folder, run.secrets, said="", sent=())


def test_the_scan_sees_what_is_sent_and_what_is_said(run: Finished) -> None:
    for argument in (run.secrets.rows[1][:9], _learned(run), [FIRST_ID]):
        with pytest.raises(AssertionError, match="an argument of a worker holds"):
            scan_unprotected(run.folder, run.secrets, said="", sent=[sent(argument)])
    with pytest.raises(AssertionError, match="what was said holds"):
        scan_unprotected(run.folder, run.secrets, said=_earned(run), sent=())
