"""What ``make soak`` measures, on a few steps and on work that grows."""

import mmap
from pathlib import Path

import pytest

from tests import soak
from tests.soak import Watch, cell, grows

RESERVATIONS = "blocks reserved and committed"


def test_a_few_reservations_leave_little_behind(tmp_path: Path) -> None:
    row = cell(RESERVATIONS, tmp_path, steps=24, seconds=60)
    assert row["done"] == 24
    assert row["descriptors a step"] <= soak.MOST_DESCRIPTORS
    assert 0 <= row["ledger, bytes a step"] < 4 * soak.MOST_LEDGER


def test_work_that_grows_is_seen_in_one_process_and_in_several(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept, opened = [], []

    def leaking(folder: Path, steps: int, watch: Watch) -> None:
        (folder / "ledger.sqlite").touch()
        for step in range(watch.done + 1, watch.done + steps // 2 + 1):
            kept.append(mmap.mmap(-1, 2**18))  # memory that no earlier test has left free
            kept[-1].write(bytes(2**18 - 1) + b"1")
            opened.append((folder / "file").open("w"))
            watch.look(step)

    monkeypatch.setitem(soak.WORK, "leaking", (leaking, 40))
    half = cell("leaking", tmp_path, steps=0, seconds=60)
    assert half["done"] == 20
    assert not grows(half)  # not done, so not judged
    kept.append(mmap.mmap(-1, 2**23))
    kept[-1].write(bytes(2**23))  # as much more as another process may hold from its start
    row = cell("leaking", tmp_path, steps=0, seconds=60)
    for one in opened:
        one.close()
    assert row["done"] == 40
    for found in (half, row):
        assert found["memory, bytes a step"] == pytest.approx(2**18, rel=0.3)
        assert found["descriptors a step"] == pytest.approx(1, abs=0.1)
    assert grows(row)
    assert cell("leaking", tmp_path, steps=0, seconds=0) == row  # done, and told again


def test_work_goes_on_where_it_was(tmp_path: Path) -> None:
    first = cell(RESERVATIONS, tmp_path, steps=30, seconds=1e-9)
    assert first["done"] in (1, "")
    assert not grows(first)
    then = cell(RESERVATIONS, tmp_path, steps=30, seconds=60)
    assert then["done"] == 30
    steps = [look[1] for look in Watch(tmp_path, 0.0).looks]
    assert steps == sorted(set(steps)), "a step was made twice"


def test_what_was_not_begun_stays_blank(tmp_path: Path) -> None:
    row = cell(RESERVATIONS, tmp_path, steps=10, seconds=0)
    assert list(row.values())[2:] == [""] * 5
    assert not grows(row)
