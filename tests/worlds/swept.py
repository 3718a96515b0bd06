"""Public sweeps of marginals over the admissions, whose trials are quick and release rows."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from distributed_privrl.experiments.sweeps.config import Sweep, load_sweep
from distributed_privrl.experiments.sweeps.job import Job
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory
from distributed_privrl.experiments.sweeps.preparing import prepared_jobs
from tests.worlds.choosing import JUDGE, Choosing
from tests.worlds.intake import config_values

UNITS = 60
"""Patients of the judge's table that stand in."""


def public_sweep(
    world: Choosing,
    *,
    epsilons: Sequence[float],
    seeds: Sequence[int] = (0,),
    bins: bool = False,
    **changes: Any,
) -> Sweep:
    """Write a sweep over epsilons, seeds and perhaps bins, and return it."""
    values = config_values(
        world.bounds,
        data__sensitive="intake/hidden-v0",
        data__units=UNITS,
        search={
            "model.bins": {"grid": [4, 6] if bins else [4]},
            "privacy.epsilon": {"grid": [*epsilons]},
            "seed": {"grid": [*seeds]},
        },
        selection={"pays": "public", "stand_in": JUDGE, "score": {"by": "fidelity"}},
        **changes,
    )
    world.file.write_text(yaml.safe_dump(values))
    return load_sweep(world.file)


def public_jobs(folder: Path, **about: Any) -> tuple[Job, ...]:
    """Prepare such a sweep in ``folder / "out"``, and return its trials, seeds last."""
    world = Choosing(folder)
    return prepared_jobs(
        public_sweep(world, **about),
        SweepDirectory(folder / "out"),
        store=world.store,
        ledger=f"sqlite:///{folder / 'none.sqlite'}",
        resume=False,
        anyway=True,
    )
