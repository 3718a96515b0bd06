"""A filter of the expert level over toy trajectories, its server and its ledger."""

from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.executor import LocalWorkerGroup
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.filter import FilterSettings, SvtFilters
from distributed_privrl.methods.expert.pools import ExpertPools
from distributed_privrl.privacy.events import charged_rounds
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.sparse_vector import StablePrefixes, stable_prefixes
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.rounds.releases import ReleaseServer, ReleaseServerSpec
from tests.methods.expert.toy import Episode, Table, host_of, trajectories
from tests.worlds.ledgers import open_run, url_of

EXPERTS, POOL = 300, 4
SAME = Table(((0.9, 0.1), (0.1, 0.9)))
LIKELY = Episode((0, 1, 0, 0), (0, 1, 0), 1.0)


def mechanism(draws: int = 6, **changes: Any) -> StablePrefixes:
    made = stable_prefixes(
        epsilon=8.0,
        delta=1e-5,
        experts=EXPERTS,
        minimum_probability=0.1,
        draws=draws,
        max_length=3,
    )
    return replace(made, release_pool=POOL, **changes)


def pool_of(*some: Episode, experts: int = EXPERTS) -> Trajectories:
    units = [unit for unit in range(experts) for _ in some]
    return trajectories(list(some) * experts, units)


def hosts_of(pool: Trajectories, *, hosts: int = 1, release_pool: int = POOL) -> LocalWorkerGroup:
    ends = np.linspace(0, EXPERTS, hosts + 1).astype(int).tolist()
    return LocalWorkerGroup(
        [
            host_of(
                [SAME] * (stop - start),
                minimum_probability=0.1,
                pool=pool,
                release_pool=release_pool,
                first=start,
            )
            for start, stop in pairwise(ends)
        ]
    )


def private(folder: Path) -> Path:
    (folder / "private").mkdir(mode=0o700, parents=True, exist_ok=True)
    return folder / "private"


LAST: list[tuple[int, int]] = []


def note_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Note the last trajectory that was read, by expert and position."""
    draw = ExpertPools.drawn

    def note(self: ExpertPools, expert: int, number: int) -> Trajectories:
        LAST[:] = [(expert, number)]
        return draw(self, expert, number)

    monkeypatch.setattr(ExpertPools, "drawn", note)


@dataclass
class Spy:
    """Records for which trajectories a group of hosts was asked, and all that it was told."""

    group: LocalWorkerGroup
    drawn: list[tuple[int, int]]
    told: list[tuple[str, Any]] = field(default_factory=list)

    def call(self, method: str, shared: Any = None, per_worker: Any = None) -> list[Any]:
        if method == "prefix_counts":
            self.drawn += LAST
        self.told.append((method, shared or per_worker))
        return self.group.call(method, shared, per_worker)


def server_of(
    folder: Path, made: StablePrefixes, hosts: Any, ledger: Ledger, *, steps: int, key: int | None
) -> ReleaseServer:
    settings = FilterSettings(
        prefixes=made,
        private=private(folder),
        secret=partial(ledger.secret, "run-toy/filter"),
        insecure_key=key,
    )
    return ReleaseServer(
        ReleaseServerSpec(
            run_id="run-toy/filter",
            checkpoint=folder / "filter.safetensors",
            rounds=steps,
            max_rounds=made.draws,
            block_rounds=1,
            ledger=ledger,
            insecure_key=key,
            workers=hosts,
            program=SvtFilters(settings=settings),
            private=True,
        )
    )


def filter_ledger(folder: Path, made: StablePrefixes) -> Ledger:
    ledger = Ledger(url_of(folder))
    budget = PrivacyBudget(epsilon=30.0, delta=1e-4, unit="expert", relation=Relation.POLICY_LEVEL)
    ledger.set_budget(dataset="toy/experts-v0", fingerprint="f", budget=budget)
    open_run(
        ledger,
        "run-toy/filter",
        dataset="toy/experts-v0",
        fingerprint="f",
        unit="expert",
        relation=Relation.POLICY_LEVEL,
        epsilon=20.0,
        delta=1e-5,
        max_rounds=made.draws,
        event=charged_rounds(made.draw_events()),
        units=EXPERTS,
    )
    return ledger
