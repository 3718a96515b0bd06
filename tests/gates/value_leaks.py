"""A gate on whole runs of `policy_value`: no exact sum leaves, and nothing of who stands out."""

from dataclasses import replace
from pathlib import Path

from distributed_privrl.methods.policy_value.sums import NUMBERS, value_of
from tests.gates.leak_runs import Finished, figures_of, raw_rows, watched_run
from tests.gates.leaks import scan
from tests.worlds.judged_rarities import MADE, RETURNS, JudgedRarities
from tests.worlds.rarities import DATASET, DECLARED, PATIENTS


def judged_run(folder: Path) -> Finished:
    """Run the method on the stays, watched; exact values are secrets, too."""
    world = JudgedRarities(folder)
    rows, released = raw_rows(world.store, DATASET), raw_rows(world.store, MADE)
    secrets = world.secrets(rows, released, figures_of(world.recorded))
    run = watched_run(world, world.config(), secrets)
    planted = {**secrets.planted, **exact_values(run)}
    return replace(run, secrets=replace(secrets, planted=planted))


def exact_values(run: Finished) -> dict[str, float]:
    """Return what sums without noise say, of as many units as are declared and as there are."""
    total = run.secrets.counts[-1]  # what the one release was given
    found = {}
    for which, units in (("", DECLARED), (" of those who are there", PATIENTS)):
        exact = value_of(total.astype(float), units=units, returns=RETURNS, deviation=0.0)
        figures = {
            "value": exact.policy,
            "return": exact.acted,
            "gain": exact.policy - exact.acted,
        }
        found |= {f"the exact {what}{which}": figure for what, figure in figures.items()}
    return found


def gate_nothing_leaves(run: Finished) -> None:
    """No file outside ``private/``, no argument and no word holds a secret."""
    counts = run.secrets.counts
    sums = 1 + run.config.runtime.workers  # of everybody, and of each worker
    assert len(counts) >= PATIENTS + sums, "numbers of units, or sums, were not watched"
    assert all(one.shape == (NUMBERS,) for one in counts)
    assert len(run.sent) > 5, "nothing was sent"
    scan(run.folder, run.secrets, said=run.said, sent=run.sent)
