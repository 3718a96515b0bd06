"""What ``make soak`` measures, on a few steps and on work that grows."""

import mmap
from pathlib import Path

import pytest

from tests import soak
from tests.soak import Watch, cell, grows


def test_a_few_reservations_leave_little_behind() -> None:
    row = cell("blocks reserved and committed", steps=24, seconds=60)
    assert row["done"] == 24
    assert row["descriptors a step"] <= soak.MOST_DESCRIPTORS
    assert 0 <= row["ledger, bytes a step"] < 4 * soak.MOST_LEDGER


def test_work_that_grows_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, opened = [], []

    def leaking(folder: Path, steps: int, watch: Watch) -> None:
        watch.ledger.touch()
        for step in range(1, steps + 1):
            kept.append(mmap.mmap(-1, 2**18))  # memory that no earlier test has left free
            kept[-1].write(bytes(2**18 - 1) + b"1")
            opened.append((folder / "file").open("w"))
            watch.look(step)

    monkeypatch.setitem(soak.WORK, "leaking", leaking)
    row = cell("leaking", steps=40, seconds=60)
    for one in opened:
        one.close()
    assert row["memory, bytes a step"] == pytest.approx(2**18, rel=0.3)
    assert row["descriptors a step"] == pytest.approx(1, abs=0.1)
    assert grows(row)


def test_work_whose_time_is_over_says_how_far_it_came() -> None:
    row = cell("blocks reserved and committed", steps=10**6, seconds=0)
    assert row["done"] == ""
    assert not grows(row)
