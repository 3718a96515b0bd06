"""A gate on the filter of the expert level: no trajectory is filtered twice."""

import shutil
from pathlib import Path

import pytest

from tests.worlds.filters import (
    LIKELY,
    POOL,
    Spy,
    filter_ledger,
    hosts_of,
    mechanism,
    note_draws,
    pool_of,
    server_of,
)


def gate_no_trajectory_is_filtered_twice(folder: Path) -> None:
    """A folder that is copied after two draws of four is resumed when the run has made all.

    Four draws, two spare ones: the copy makes the two that the ledger has left.
    """
    with pytest.MonkeyPatch.context() as patch:
        note_draws(patch)
        made = mechanism(draws=6)
        ledger = filter_ledger(folder, made)
        spy = Spy(hosts_of(pool_of(*[LIKELY] * POOL)), [])
        server = server_of(folder / "run", made, spy, ledger, steps=4, key=None)
        server.advance(2)
        shutil.copytree(folder / "run", folder / "copy")
        assert server.advance(4).finished
        copy = server_of(folder / "copy", made, spy, ledger, steps=4, key=None)
        assert copy.progress().round_index == 2
        copy.advance(4)
        again = len(spy.drawn) - len(set(spy.drawn))
        assert again == 0, f"{again} trajectories were filtered twice"
        assert len(spy.drawn) == 6
