"""A gate on accounts: the rows and people that one knows get no other, and no other price."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments.accounts import check_public
from tests.worlds.ward import NAME, STAYS, STEPS, Ward, grid, stays


def gate_one_account(folder: Path) -> None:
    """Try what would spend the budget of people anew; each attempt must be refused."""
    ward = Ward(folder)
    ward.write(NAME, stays())
    ward.budget(NAME)
    ward.write("toy/grid-v0", **grid(states=5), unit_column=None)
    ward.budget("toy/grid-v0", unit="trajectory")
    ward.charge(NAME)
    ward.write("ward/turned-v0", stays().select(np.arange(STAYS)[::-1]), layout="episodes")
    ward.write("toy/wider-v0", **grid(states=6), unit_column=None)
    zeros = np.zeros(STAYS * STEPS // 2, np.float32)
    half = renamed(replace(stays().select(range(STAYS // 2)), rewards=zeros))
    ward.write("ward/half-v0", half)
    # Of as many others the half is .5 %: a sample of them that has twice that is eight deviations.
    others = stays(seed=5, count=100 * STAYS)
    ward.write("ward/more-v0", renamed(Trajectories.concatenate([half, others])))
    doubled = replace(stays(), observations=stays().observations / 2)
    ward.write("ward/doubled-v0", doubled)
    _refused("the same rows in another order", lambda: ward.budget("ward/turned-v0"))
    _refused(
        "the same rows, declared otherwise", lambda: ward.budget("toy/wider-v0", unit="trajectory")
    )
    _refused("half of the rows", lambda: ward.budget("ward/half-v0"))
    _refused("half of the rows among others", lambda: ward.budget("ward/more-v0"))
    _refused(
        "half of the rows, as public ones",
        lambda: check_public(ward.store, ward.ledger, ["ward/half-v0"]),
    )
    _refused("the same people under other numbers", lambda: ward.budget("ward/doubled-v0"))
    _refused(
        "the same people under other numbers, as public ones",
        lambda: check_public(ward.store, ward.ledger, ["ward/doubled-v0"]),
    )
    ward.rewrite(NAME, stays(patients=STAYS))
    _refused("a run on the rows as other people's", lambda: ward.run())
    _refused("a budget for the rows as other people's", lambda: ward.budget(NAME))


def renamed(rows: Trajectories) -> Trajectories:
    """Return rows whose people have names that nobody else has."""
    return replace(rows, unit_ids=rows.unit_ids + np.uint64(10**6))


def _refused(what: str, attempt: Callable[[], object]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            attempt()
    except UnsafeError:
        return
    raise AssertionError(f"{what}: not refused")
