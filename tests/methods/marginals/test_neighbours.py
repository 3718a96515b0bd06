"""Whole runs over neighbouring datasets whose noisy answers are the same.

What moves before the noise is at most what is charged, and no byte that may leave differs.
"""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments import reports
from distributed_privrl.marginals import belief
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease, IntegerGaussianRelease
from distributed_privrl.privacy.selection import ExponentialSelection
from tests.marginals.programs import chained
from tests.worlds.rarities import DATASET, SPACES, Rarities, stays

CHANGING = re.compile(
    rb"run-[0-9a-f]{16}|\b[0-9a-f]{32}\b|\b[0-9a-f]{64}\b|\d{4}-\d\d-\d\dT[\d:.+Z]*"
)
"""Ids, hashes and the time of a certificate: of each run anew, whatever its rows are."""
METHODS = ["marginals", "marginals_j"]


def rare(lengths: list[int], *, low: bool = False, broken: bool = False) -> Trajectories:
    """Return trajectories of one person in a corner of the space, or beyond it."""
    steps, count = sum(lengths), len(lengths)
    corner = np.full((steps + count, 3), np.nan if broken else 0.0 if low else 50.0, np.float32)
    last = np.zeros(steps, bool)
    last[np.cumsum(lengths) - 1] = True
    return Trajectories(
        observations=corner,
        actions=np.full(steps, 0 if low else 4),
        rewards=np.full(steps, -1.0 if low else 1.0, np.float32),
        terminated=last,
        truncated=np.zeros(steps, bool),
        offsets=offsets_of(np.array(lengths)),
        unit_ids=np.full(count, 1, np.uint64),
    )


PEOPLE: dict[str, Trajectories] = {
    "one row": rare([1]),
    "many rows": rare([9] * 200),
    "one long stay": rare([900]),
    "many stays of one row": rare([1] * 500, low=True),
    "nothing proper": rare([5] * 3, broken=True),
}


@dataclass
class Answers:
    """Answers that are the same in each run, and what they were asked for.

    Args:
        known: answers by their place in a run.
        asked: kind, what is charged for, and exact integers of each, in this run.
    """

    known: dict[int, Any] = field(default_factory=dict)
    asked: list[tuple[str, float, NDArray[np.int64]]] = field(default_factory=list)

    def plant(self, patch: pytest.MonkeyPatch) -> None:
        """Have releases and choices answer so."""
        for owner, name, kind, charged in (
            (IntegerGaussianRelease, "release", "L2", "sensitivity"),
            (DiscreteLaplaceRelease, "release", "L1", "sensitivity"),
            (ExponentialSelection, "choose", "range", "span"),
        ):
            patch.setattr(owner, name, self._answer(getattr(owner, name), kind, charged))

    def _answer(self, right: Callable[..., Any], kind: str, charged: str) -> Callable[..., Any]:
        def answer(release: Any, exact: Any, *given: Any, **about: Any) -> Any:
            place = len(self.asked)
            self.asked.append((kind, getattr(release, charged), np.array(exact, np.int64)))
            if place not in self.known:
                self.known[place] = right(release, exact, *given, **about)
            return self.known[place]

        return answer


def left(folder: Path, method: str, answers: Answers, person: Trajectories | None) -> Any:
    """Run in a folder of the same name each time; return what may leave, and what was asked."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    place, answers.asked = Rarities(folder, method), []
    if person is not None:
        place.store.remove(DATASET)
        rows = Trajectories.concatenate([person, stays()])
        place.store.write_trajectories(
            DATASET, rows, unit_column="patient", layout="packed", **SPACES
        )
    said: list[tuple[Any, ...]] = []
    config = place.config(data__max_length=60)
    result = place.afford(config).start(config, progress=lambda *facts: said.append(facts))
    assert result.certificate.status == "valid"
    found: dict[str, Any] = {"@said": said}
    for top in (result.directory.path, place.store.root / str(result.released)):
        for path in (one for one in top.rglob("*") if one.is_file()):
            if "private" not in path.relative_to(folder).parts[1:-1]:
                name = str(path.relative_to(folder))
                found[name] = CHANGING.sub(b"", path.read_bytes())
    return found, answers.asked


@pytest.fixture
def without_private_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "attempted_sections", lambda *_: [])
    monkeypatch.setattr(belief, "estimated", chained)


def moved(kind: str, one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return how far exact integers of two datasets are apart, as their event measures it."""
    apart = (one - other).astype(np.float64).ravel()
    if kind == "range":
        return float(np.ptp(apart))
    return float(np.abs(apart).sum() if kind == "L1" else np.linalg.norm(apart))


@pytest.mark.usefixtures("without_private_reports")
@pytest.mark.parametrize("method", METHODS)
def test_a_person_moves_what_is_charged_at_most_and_no_byte_that_may_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    answers, worst = Answers(), {"L1": 0.0, "L2": 0.0, "range": 0.0}
    answers.plant(monkeypatch)
    files, asked = left(tmp_path / "place", method, answers, None)
    assert len(files) > 8
    for name, person in PEOPLE.items():
        others, others_asked = left(tmp_path / "place", method, answers, person)
        assert files.keys() == others.keys(), name
        changed = [one for one, content in files.items() if others[one] != content]
        assert not changed, f"{name}: {changed} tell of exact counts"
        for (kind, charged, one), (*same, other) in zip(asked, others_asked, strict=True):
            assert same == [kind, charged]
            assert one.shape == other.shape
            worst[kind] = max(worst[kind], moved(kind, one, other) / charged)
    assert max(worst.values()) <= 1, worst
    assert worst["L2"] > 0.9
    assert worst["range"] > 0.5
