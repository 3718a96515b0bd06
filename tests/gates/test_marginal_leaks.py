"""Whole runs of marginals, of both kinds and before rounds: what may leave holds no secret."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from distributed_privrl.experiments import reports
from distributed_privrl.marginals import belief
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from tests.gates.leak_runs import Finished
from tests.gates.leak_secrets import Secrets
from tests.gates.leaks import scan, scan_metadata
from tests.gates.marginal_leaks import METADATA, gate_nothing_leaves, rare_run
from tests.gates.metadata import write_words
from tests.marginals.programs import chained
from tests.worlds.opened import opened
from tests.worlds.rarities import RELEASED, VALUES
from tests.worlds.sending import sent

COMPARED = {"marginals", "marginals_j"}
"""Runs whose figures are drawn, and whose release is compared with the real rows.

One is of rows, one of trajectories. What is compared is the same for all methods, and lies in
``private/``; what it might say is looked at here.
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """Return the run of a method, which is run once, without the estimation of its model.

    An estimate is given released counts alone, so that a secret has no way into it.
    """
    known: dict[str, Finished] = {}

    def run(method: str) -> Finished:
        if method not in known:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(belief, "estimated", chained)
                if method not in COMPARED:
                    patch.setattr(reports, "attempted_sections", lambda *_: [])
                    patch.setattr(Figure, "savefig", write_words)
                known[method] = rare_run(tmp_path_factory.mktemp("leaks"), method)
        return known[method]

    return run


@pytest.mark.parametrize("method", VALUES)
def test_nothing_that_may_leave_holds_a_secret(
    method: str, runs: Callable[[str], Finished]
) -> None:
    gate_nothing_leaves(runs(method))


def _counts(secrets: Secrets) -> Any:
    """Return the exact counts of all columns together."""
    return max(secrets.counts, key=len)


def _planted(secrets: Secrets, what: str) -> str:
    return str(int(secrets.planted[what]))


def _write(folder: Path, name: str, content: bytes) -> None:
    (folder / "checkpoint" / name).write_bytes(content)


def _report(folder: Path, text: str) -> None:
    path = folder / "report.html"
    path.write_text(f"{path.read_text()} {text} ")


LEAKS: dict[str, Callable[[Path, Secrets], Any]] = {
    "some exact counts": lambda folder, secrets: _write(
        folder, "counts", _counts(secrets)[:60].tobytes()
    ),
    "counts as floats": lambda folder, secrets: _write(
        folder, "counts", _counts(secrets).astype(np.float32).tobytes()
    ),
    "counts in units": lambda folder, secrets: _write(
        folder, "counts", (_counts(secrets) / UNIT_WEIGHT).tobytes()
    ),
    "a count in decimals": lambda folder, secrets: _report(
        folder, str(next(one for one in _counts(secrets).tolist() if one > 10**7))
    ),
    "all units": lambda folder, secrets: _report(
        folder, f"{secrets.counts[0].sum() / UNIT_WEIGHT:.7f}"
    ),
    "scores": lambda folder, secrets: _write(folder, "scores", secrets.scores[0].tobytes()),
    "a score in decimals": lambda folder, secrets: _report(folder, str(secrets.scores[0].max())),
    "an edge": lambda folder, secrets: _write(
        folder, "edges", np.array([0, secrets.planted["the largest number"]]).tobytes()
    ),
    "a rare number": lambda folder, secrets: _write(
        folder, "edges", np.array([0, secrets.planted["a rare reward"]], np.float32).tobytes()
    ),
    "a negative number": lambda folder, secrets: _report(
        folder, f"{secrets.planted['a rare reward']:.6f}"
    ),
    "an id": lambda folder, secrets: _report(
        folder, "patient " + _planted(secrets, "the last patient's id")
    ),
    "how many there are": lambda folder, secrets: _report(
        folder, _planted(secrets, "the number of patients") + " patients"
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_the_scan_sees_a_planted_leak(
    name: str, runs: Callable[[str], Finished], tmp_path: Path
) -> None:
    run = runs("marginals")
    shutil.copytree(run.folder, tmp_path / "run")
    LEAKS[name](tmp_path / "run", run.secrets)
    with pytest.raises(AssertionError, match="holds"):
        scan(tmp_path / "run", run.secrets)


def test_the_scan_sees_what_is_sent_and_what_is_said(runs: Callable[[str], Finished]) -> None:
    run = runs("marginals")
    secrets, largest = run.secrets, run.secrets.planted["the largest number"]
    counts = _counts(secrets)
    for argument in (
        counts,
        {"low": 0.0, "high": largest},
        [int(secrets.planted["the first patient's id"])],
    ):
        with pytest.raises(AssertionError, match="an argument of a worker holds"):
            scan(run.folder, secrets, sent=[sent(argument)])
    with pytest.raises(AssertionError, match="what was said holds"):
        scan(run.folder, secrets, said=f"chosen with {secrets.scores[0].max()}")
    said = opened(run.store.info(RELEASED).metadata)
    days = _planted(secrets, "the number of days")
    with pytest.raises(AssertionError, match="metadata holds the number of days"):
        scan_metadata({**said, "description": f"made of {days} days"}, secrets, known=METADATA)
