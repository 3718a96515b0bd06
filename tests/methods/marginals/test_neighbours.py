"""Whole runs over neighbouring datasets whose noisy answers are the same.

What moves before the noise is at most what is charged, and no byte that may leave differs.
"""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.experiments import reports
from distributed_privrl.marginals import belief
from tests.marginals.answers import Answers, moved, what_may_leave
from tests.marginals.programs import chained
from tests.worlds.rarities import DATASET, SPACES, Rarities, stays

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
    return {"@said": said, **what_may_leave(place, result)}, answers.asked


@pytest.fixture
def without_private_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "attempted_sections", lambda *_: [])
    monkeypatch.setattr(belief, "estimated", chained)


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
