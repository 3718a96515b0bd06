"""RLlib's gradient steps beside the plain loop's, and the bridge that brings the rows.

Both sides have the same networks, losses, optimiser, batch size and rows, which lie encoded in
memory. RLlib's CPU time counts every process of its Ray, the plain loop's its own process.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box

from benchmarks.harness import SEED, Alternative
from benchmarks.processes import cpu_seconds
from distributed_privrl.agents.algorithm import Sizes
from distributed_privrl.agents.algorithms import ALGORITHMS, configured
from distributed_privrl.agents.training import draw_batches, make_optimiser, update
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.runtime.rllib.bridge import Bridge, export_for_rllib
from distributed_privrl.runtime.session import connect

STEPS_IN_ALL = 10**6
DATASET = "benchmark/rows-v0"


@dataclass(frozen=True, kw_only=True)
class Bridged:
    """A bridge of random rows, and what it took.

    Args:
        bridge: the rows.
        seconds: on the clock, from the stored dataset to the bridge.
        cpu_seconds: of this process.
    """

    bridge: Bridge
    seconds: float
    cpu_seconds: float


def make_bridge(folder: Path, rows: int, sizes: Sizes) -> Bridged:
    """Store random rows and export them."""
    generator = np.random.default_rng(SEED)

    def draw(width: int) -> Any:
        return generator.standard_normal((rows, width), dtype=np.float32)

    store = DatasetStore(folder / "datasets")
    store.write_transitions(
        DATASET,
        Transitions(
            observations=draw(sizes.observation),
            actions=np.tanh(draw(sizes.action)),
            rewards=draw(1)[:, 0],
            next_observations=draw(sizes.observation),
            terminated=np.zeros(rows, bool),
            truncated=np.zeros(rows, bool),
            unit_ids=np.arange(rows, dtype=np.uint64),
        ),
        layout="transitions",
        observation_space=Box(-np.inf, np.inf, (sizes.observation,)),
        action_space=Box(-1, 1, (sizes.action,)),
        metadata={"declared_public": True},
    )
    wall, cpu = time.perf_counter(), time.process_time()
    bridge = export_for_rllib(store, DATASET, folder / "bridge")
    return Bridged(
        bridge=bridge,
        seconds=time.perf_counter() - wall,
        cpu_seconds=time.process_time() - cpu,
    )


class PlainSteps:
    """Some steps of the plain loop."""

    def __init__(
        self, name: str, bridge: Bridge, sizes: Sizes, steps: int, options: Mapping[str, Any]
    ) -> None:
        from distributed_privrl.runtime.rllib.rows import encoded

        self._agent = configured(ALGORITHMS[name], options)
        self._networks = self._agent.networks(sizes, torch.Generator().manual_seed(SEED))
        self._optimiser = make_optimiser(self._agent, self._networks)
        rows = np.concatenate([encoded(part, bridge) for part in bridge.parts])
        self._batches = draw_batches(
            torch.from_numpy(rows),
            sizes,
            batch_size=self._agent.config.batch_size,
            noise_width=self._agent.noise_width(sizes),
            streams=Streams(SEED),
        )
        self._steps, self._done = steps, 0

    def __call__(self) -> None:
        """Take the steps."""
        for _ in range(self._steps):
            self._done += 1
            batch = next(self._batches)
            update(
                self._agent,
                self._networks,
                self._optimiser,
                batch,
                step=self._done,
                steps=STEPS_IN_ALL,
            )


def rllib_steps(name: str, bridge: Bridge, steps: int, options: Mapping[str, Any]) -> Any:
    """Return the algorithm, whose ``train()`` takes some steps in this process."""
    connect()
    from distributed_privrl.runtime.rllib.algorithm import RLLIB_ALGORITHMS

    config = RLLIB_ALGORITHMS[name].get_default_config().bridge(bridge.folder)
    config.training(steps=STEPS_IN_ALL, public_seed=SEED, **options)
    config.dataset_num_iters_per_learner = steps
    return config.build_algo()


def alternatives(
    names: tuple[str, ...],
    bridge: Bridge,
    sizes: Sizes,
    steps: int,
    options: Mapping[str, Any],
) -> dict[str, Alternative]:
    """Return both ways of each agent; one run takes ``steps`` steps."""
    found = {}
    for name in names:
        found[f"{name}, plain loop"] = Alternative(
            run=PlainSteps(name, bridge, sizes, steps, options)
        )
        agent = rllib_steps(name, bridge, steps, options)
        found[f"{name}, RLlib"] = Alternative(run=agent.train, cpu_clock=cpu_seconds)
    return found
