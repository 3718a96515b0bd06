"""A gate on the sums behind a policy's value: a unit adds its own integers, and no more."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.policy_value.sums import STEPS, UNIT_L1
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease
from tests.worlds.judged import PATIENTS, REAL, Judged, stays

Sums = NDArray[np.int64]
EXTREME = 1e30


def raw_sums(folder: Path, rows: Trajectories) -> Sums:
    """Return what a run on these stays adds its noise to."""
    folder.mkdir()
    world = Judged(folder)
    (world.store.root / REAL).rename(folder / "old")
    world.write(REAL, rows)
    world.budget()
    seen: list[Sums] = []
    right = DiscreteLaplaceRelease.release
    with pytest.MonkeyPatch.context() as patch:

        def watched(self: object, values: Sums, *rest: object, **named: object) -> Sums:
            seen.append(values.copy())
            return right(self, values, *rest, **named)  # type: ignore[arg-type]

        patch.setattr(DiscreteLaplaceRelease, "release", watched)
        world.run()
    assert len(seen) == 1, "one release is charged"
    return seen[0]


def worst_stays() -> Trajectories:
    """Return stays, the last patient's rewards without bounds."""
    found = stays(3)
    last = np.repeat(found.unit_ids == PATIENTS - 1, found.lengths)
    found.rewards[last] = EXTREME
    return found


def gate_value_sums(folder: Path) -> None:
    """Sums of all are sums of the others and of one, to the last bit, and one is bounded."""
    rows = worst_stays()
    one = np.flatnonzero(rows.unit_ids == PATIENTS - 1)
    others = np.flatnonzero(rows.unit_ids != PATIENTS - 1)
    everybody, rest, alone = (
        raw_sums(folder / name, part)
        for name, part in (
            ("all", rows),
            ("others", rows.select(others)),
            ("one", rows.select(one)),
        )
    )
    moved = everybody - rest
    assert np.abs(moved).sum() <= UNIT_L1, "a unit moves the sums by more than is charged"
    assert np.abs(moved).sum() > STEPS, "rows built for the worst case move next to nothing"
    np.testing.assert_array_equal(moved, alone, "a unit's rows change what others add")
