"""Gates on noisy statistics: the assembled way of DP-APVI, from trajectories to the ledger.

And the sums of DP-VAPVI, from rows to what its noise is added to.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial, partialmethod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.value_iteration.counts import CountLayout, CountSpec, CountWorker
from distributed_privrl.methods.value_iteration.features import FeatureMap
from distributed_privrl.methods.value_iteration.linear import LinearProgram
from distributed_privrl.methods.value_iteration.linear_settings import (
    LinearSettings,
    statistics_spec,
)
from distributed_privrl.methods.value_iteration.programs import Programs
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.methods.value_iteration.step_noise import StepNoise
from distributed_privrl.methods.value_iteration.tabular_settings import TabularSettings
from distributed_privrl.privacy.events import charged_rounds
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.rounds.releases import ReleaseServer, ReleaseServerSpec
from tests.gates.bounds import assert_dispersion
from tests.gates.system import System
from tests.methods.value_iteration.tabular_data import MemoryShard, trajectories_of
from tests.worlds.ledgers import open_run

HORIZON, STATES, ACTIONS, Z = 3, 4, 2, 2.0
LAYOUT = CountLayout(states=STATES, actions=ACTIONS, horizon=HORIZON, estimate_reward=True)
ACCOUNT: dict[str, Any] = {"dataset": "gate/stays-v0", "fingerprint": "0" * 64}


@dataclass
class Drawn:
    """What the noise source was given and gave in integer steps, one entry a draw."""

    raw: list[NDArray[np.int64]] = field(default_factory=list)
    noisy: list[NDArray[np.int64]] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)


def path(state: int, action: int, reward: float) -> tuple[Any, ...]:
    """Return a trajectory that stays where it is."""
    return [(state, action, reward)] * HORIZON, state, False


def run(system: System, name: str, units: list[tuple[Any, ...]], *, workers: int = 2) -> Drawn:
    """Run DP-APVI on ``units`` and return its draws."""
    folder = Path(system.folder) / name
    folder.mkdir()
    noise = StepNoise(noise_multiplier=Z)
    ledger = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    budget = PrivacyBudget(
        epsilon=50.0, delta=1e-3, unit="trajectory", relation=Relation.REPLACE_ONE
    )
    ledger.set_budget(**ACCOUNT, budget=budget)
    open_run(
        ledger,
        "run",
        **ACCOUNT,
        unit="trajectory",
        relation=Relation.REPLACE_ONE,
        epsilon=10.0,
        delta=1e-4,
        max_rounds=HORIZON,
        event=charged_rounds([noise.event]),
    )
    rows: Trajectories = trajectories_of(units)
    specs = [
        CountSpec(source=MemoryShard(trajectories=rows, index=i, count=workers), layout=LAYOUT)
        for i in range(workers)
    ]
    group = LocalExecutor().start(CountWorker, specs)
    with observed(ledger) as drawn:
        server = ReleaseServer(
            ReleaseServerSpec(
                run_id="run",
                checkpoint=folder / "steps.safetensors",
                rounds=HORIZON,
                max_rounds=HORIZON,
                block_rounds=1,
                ledger=ledger,
                workers=group,
                program=Programs(TabularSettings(layout=LAYOUT, noise=noise)),
                private=True,
            )
        )
        while not server.advance(1).finished:
            pass
    entry = ledger.reserved("run")
    assert entry is not None
    assert (entry.reserved_rounds, entry.committed_rounds) == (HORIZON, HORIZON)
    ledger.close()
    return drawn


@contextmanager
def observed(ledger: Ledger | None = None) -> Iterator[Drawn]:
    """Record every Gaussian draw of this process, exact or not."""
    drawn = Drawn()
    exact, floating = SecureNoise.add_discrete_gaussian, SecureNoise.add_gaussian

    def spy(right: Any, self: SecureNoise, values: Any, **arguments: Any) -> Any:
        entry = ledger.reserved("run") if ledger is not None else None
        drawn.raw.append(np.array(values))
        drawn.reserved.append(entry.reserved_rounds if entry is not None else 0)
        noisy = right(self, values, **arguments)
        drawn.noisy.append(np.array(noisy))
        drawn.deviations.append(float(arguments["standard_deviation"]))
        return noisy

    SecureNoise.add_discrete_gaussian = partialmethod(partial(spy, exact))  # type: ignore
    SecureNoise.add_gaussian = partialmethod(partial(spy, floating))  # type: ignore
    try:
        yield drawn
    finally:
        SecureNoise.add_discrete_gaussian = exact  # type: ignore[method-assign]
        SecureNoise.add_gaussian = floating  # type: ignore[method-assign]


def gate_release_sensitivity(system: System) -> None:
    """The worst pair of neighbours moves each released vector by at most what z pays for."""
    common = [path(0, 0, 0.5)] * 3
    datasets = {
        f"{state}{action}{reward:g}": [*common, path(state, action, reward)]
        for state, action, reward in ((0, 0, 1.0), (1, 1, 1.0), (2, 0, 0.0), (3, 1, 1.0))
    }
    draws = {name: run(system, name, units) for name, units in datasets.items()}
    worst = max(
        float(np.linalg.norm(a - b) / deviation)
        for one in draws.values()
        for two in draws.values()
        for a, b, deviation in zip(one.raw, two.raw, one.deviations, strict=True)
    )
    assert worst <= 1 / Z * (1 + 1e-9), f"a unit moves a release by {worst:.4f} deviations"
    assert worst >= 0.99 / Z, f"the noise is {1 / Z / worst:.3f} times what the worst pair needs"


def gate_every_cell(system: System) -> None:
    """Every cell gets noise of the stated deviation, visited or not, once a step."""
    drawn = run(system, "cells", [path(0, 0, 0.5)] * 5)
    assert len(drawn.raw) == HORIZON, f"{HORIZON} steps made {len(drawn.raw)} draws"
    steps = zip(drawn.noisy, drawn.raw, drawn.deviations, strict=True)
    noise = np.array([(noisy - raw) / deviation for noisy, raw, deviation in steps])
    sizes = {len(step) for step in drawn.raw}
    assert sizes == {LAYOUT.dimension}, f"{sizes} cells of {LAYOUT.dimension} are released"
    silent = int((noise == 0).sum())
    assert silent <= 1, f"{silent} cells got no noise"  # one by chance: 1 in 15,000 runs
    assert_dispersion(float(noise.ravel() @ noise.ravel()), noise.size, "variance of the noise")


def gate_charged_releases(system: System) -> None:
    """Each step is reserved before its noise is drawn, and drawn once."""
    drawn = run(system, "charged", [path(1, 0, 0.0)] * 4)
    for draws, reserved in enumerate(drawn.reserved):
        assert draws < reserved, "a draw is not covered by a reservation"
    assert len(drawn.raw) == HORIZON, f"{HORIZON} steps made {len(drawn.raw)} draws"


def gate_exact_statistics(system: System) -> None:
    """One unit moves the sums of DP-VAPVI by its own rounded terms, whatever else is summed."""
    generator = np.random.default_rng(1)
    table = generator.normal(size=(STATES, ACTIONS, 3))
    features = FeatureMap(table=table / np.linalg.norm(table, axis=-1).max())
    settings = LinearSettings(
        features=features, horizon=1, units=500, split=False, noise_multiplier=Z
    )
    paths = [
        ([(int(generator.integers(STATES)), int(generator.integers(ACTIONS)), reward)], 0, False)
        for reward in np.tile([1.0, 2.0**-30, 1 / 3], 170)
    ]

    def sums(kept: list[Any]) -> NDArray[np.int64]:
        rows = trajectories_of(kept)
        source = MemoryShard(trajectories=rows)
        spec = statistics_spec(settings, source)
        group, program = LocalExecutor().start(StatisticsWorker, [spec]), LinearProgram(settings)
        with observed() as drawn:
            program.step(0, group, SecureNoise())
        assert all(raw.dtype == np.int64 for raw in drawn.raw), "sums are not integers"
        return np.concatenate(drawn.raw)

    everybody = sums(paths)
    for removed in (0, 255, 509):
        moved = everybody - sums(paths[:removed] + paths[removed + 1 :])
        beyond = int(np.abs(moved - sums([paths[removed]])).max())
        assert beyond == 0, f"a unit moves a sum by {beyond} steps more than its own terms"
