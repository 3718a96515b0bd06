"""Scoring prefixes against hosted experts: (prefix x expert) pairs a second of one core.

Ours: one forward for each expert and trajectory, and a cumulative sum in log space. Beside it, in
the same turns: the same forwards for every prefix anew, and the pseudo-code of the paper as it
reads, a forward for each state of each prefix of each expert. The literal forms do a part of the
work, as stated; their rate does not depend on how much. The job is scored by actors of the filter
itself, whose own share of the time is what is not spent in the hosts.
"""

import os
import resource
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result
from distributed_privrl.agents.expert_policies import Activation, ExpertPolicies
from distributed_privrl.core.executor import LocalWorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.expert.filter import FilterSettings, SvtFilter
from distributed_privrl.methods.expert.hosting import ExpertHost, HostSpec, PolicySource
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.sparse_vector import StablePrefixes, stable_prefixes

ASKED_RATE = 300_000
"""(prefix x expert) pairs a core-second that issue 8 asks for."""
ASKED_RATIO = 1_500
"""How many times the literal pseudo-code."""
ASKED_MEMORY = 4.0
"""GB for 3,000 hosted experts, at most."""
OURS, TANH = "cumulative sum", "cumulative sum, tanh for relu"
PREFIXES, LITERAL = "prefixes recomputed", "literal pseudo-code"
BOUND = "bare matrix products (bound)"
MINIMUM_PROBABILITY = 0.02


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        widths: of an expert's layers, observations first, actions last.
        experts: hosted, whose memory is measured.
        scored: of them, scored in a turn.
        steps: of a trajectory.
        recomputed: experts of the form that recomputes prefixes.
        literal_steps: of the literal form's one expert, at the end of the trajectory.
        turns: of each alternative.
        draws: of the filter whose own share is measured, on the scored experts.
    """

    widths: tuple[int, ...] = (8, 512, 256, 64, 4)
    experts: int = 3_000
    scored: int = 500
    steps: int = 200
    recomputed: int = 4
    literal_steps: int = 2
    turns: int = 5
    draws: int = 4


FULL = Scale()
QUICK = Scale(widths=(8, 16, 4), experts=60, scored=60, steps=12, recomputed=2, turns=1, draws=2)


@dataclass(frozen=True, kw_only=True)
class RandomExperts:
    """Experts ``first`` to ``stop``, random: what they are costs the same.

    Args:
        scale: their widths.
        first: number of the first.
        stop: after the last.
    """

    scale: Scale
    first: int
    stop: int

    def __call__(self) -> list[ExpertPolicies]:
        """Return them."""
        generator = torch.Generator().manual_seed(SEED + self.first)
        widths, count = self.scale.widths, self.stop - self.first
        sizes = list(pairwise(widths))
        return [
            ExpertPolicies(
                weights=tuple(
                    torch.randn(count, *size, generator=generator) / size[0] ** 0.5
                    for size in sizes
                ),
                biases=tuple(torch.zeros(count, size[1]) for size in sizes),
                activation="relu",
                minimum_probability=MINIMUM_PROBABILITY,
                unit_ids=np.arange(self.first, self.stop, dtype=np.uint64),
                offset=torch.zeros(widths[0]),
                scale=torch.ones(widths[0]),
            )
        ]


@dataclass(frozen=True, kw_only=True)
class OneTrajectory:
    """A random trajectory, the same for every expert.

    Args:
        scale: its steps and widths.
    """

    scale: Scale

    def states(self) -> NDArray[np.float32]:
        """Return its observations ``(L + 1, O)``."""
        numbers = Streams(SEED).numpy("trajectory")
        size = self.scale.steps + 1, self.scale.widths[0]
        return numbers.normal(size=size).astype(np.float32)

    def actions(self) -> NDArray[np.int64]:
        """Return its actions ``(L,)``."""
        return Streams(SEED).numpy("actions").integers(self.scale.widths[-1], size=self.scale.steps)

    def __call__(self, unit_ids: NDArray[np.uint64]) -> Trajectories:
        """Return the trajectory once for each unit."""
        steps, count = self.scale.steps, len(unit_ids)
        return Trajectories(
            observations=np.tile(self.states(), (count, 1)),
            actions=np.tile(self.actions(), count),
            rewards=np.zeros(steps * count, np.float32),
            terminated=np.zeros(steps * count, np.bool_),
            truncated=np.tile(np.arange(steps) == steps - 1, count),
            offsets=offsets_of([steps] * count),
            unit_ids=unit_ids,
        )


def host_spec(policies: PolicySource, scale: Scale, *, first: int = 0) -> HostSpec:
    """Return what a host of ``policies`` is built from, each with the one trajectory."""
    return HostSpec(
        policies=policies,
        pool=OneTrajectory(scale=scale),
        first=first,
        actions=scale.widths[-1],
        minimum_probability=MINIMUM_PROBABILITY,
        release_pool=1,
    )


def draws_of(scale: Scale, draws: int) -> StablePrefixes:
    """Return a filter of so many draws from 3,000 experts."""
    return stable_prefixes(
        epsilon=50.0,
        delta=1e-6,
        experts=3_000,
        minimum_probability=MINIMUM_PROBABILITY,
        draws=draws,
        max_length=scale.steps,
    )


class Job:
    """Random experts and a trajectory."""

    def __init__(self, scale: Scale) -> None:
        self.scale = scale
        before = resident()
        (self.policies,) = RandomExperts(scale=scale, first=0, stop=scale.experts)()
        trajectory = OneTrajectory(scale=scale)
        self.states, self.actions = trajectory.states(), trajectory.actions()
        self.all = self.host(scale.experts)
        self.all.prefix_counts(self.states[:3], self.actions[:2])
        self.memory = resident() - before
        self.some = self.host(scale.scored)
        self.tanh = self.host(scale.scored, "tanh")

    def host(self, experts: int, activation: Activation = "relu") -> ExpertHost:
        """Return a host of the first experts."""
        part = replace(self.policies.part(0, experts), activation=activation)
        return ExpertHost(host_spec(lambda: [part], self.scale))

    def ours(self) -> NDArray[np.float64]:
        """Score every prefix against ``scored`` experts."""
        return self.some.prefix_counts(self.states, self.actions)

    def ours_with_tanh(self) -> NDArray[np.float64]:
        """Score every prefix against as many experts of another activation."""
        return self.tanh.prefix_counts(self.states, self.actions)

    def products(self) -> None:
        """Multiply as the forwards of as many experts do, and do nothing else."""
        states = torch.from_numpy(self.states[:-1])
        for expert in range(self.scale.scored):
            hidden = states
            for weight in self.policies.weights:
                hidden = hidden @ weight[expert]

    def recomputed(self) -> NDArray[np.float64]:
        """Score every prefix against a few experts by a forward for each prefix."""
        counts = np.zeros(self.scale.steps)
        states, actions = torch.from_numpy(self.states), torch.from_numpy(self.actions)
        for expert in range(self.scale.recomputed):
            for steps in range(1, self.scale.steps + 1):
                table = self.policies.log_probabilities(expert, states[:steps])
                chosen = table.gather(1, actions[:steps, None])
                counts[steps - 1] += float(chosen.double().sum().exp())
        return counts

    def literal(self) -> NDArray[np.float64]:
        """Score the longest prefixes against one expert, state by state: algorithm 1 as it reads.

        Of a trajectory's prefixes these are the dearest; `literal_rate` takes them for the mean.
        """
        first = self.scale.steps - self.scale.literal_steps
        counts = np.zeros(self.scale.literal_steps)
        for place in range(self.scale.literal_steps):
            product = 1.0
            for step in range(first + place + 1):
                state = torch.from_numpy(self.states[step : step + 1])
                table: Tensor = self.policies.log_probabilities(0, state)
                product *= float(table[0, int(self.actions[step])].exp())
            counts[place] += product
        return counts


def run(quick: bool) -> Result:
    """Measure the rates, the memory and the filter's own share."""
    scale = QUICK if quick else FULL
    job = Job(scale)
    with torch.inference_mode():
        timings = harness.interleave(
            {
                OURS: Alternative(run=job.ours),
                TANH: Alternative(run=job.ours_with_tanh),
                BOUND: Alternative(run=job.products),
                PREFIXES: Alternative(run=job.recomputed),
                LITERAL: Alternative(run=job.literal),
            },
            turns=scale.turns,
        )
    lengths = np.arange(1, scale.steps + 1)
    mean_length = float(lengths.mean())
    pairs = {
        OURS: float(scale.scored * scale.steps),
        TANH: float(scale.scored * scale.steps),
        BOUND: float(scale.scored * scale.steps),
        PREFIXES: float(scale.recomputed * scale.steps),
        # States are what the literal form costs; a mean prefix has fewer than the ones it did.
        LITERAL: float(lengths[-scale.literal_steps :].sum()) / mean_length,
    }
    rates = {name: pairs[name] / timing.cpu_median for name, timing in timings.items()}
    share = own_share(job)
    memory = job.memory * 3_000 / scale.experts
    return Result(
        cells=_cells(rates, scale),
        ratios={
            "per_core_second_over_asked": rates[OURS] / ASKED_RATE,
            "vs_literal": rates[OURS] / rates[LITERAL],
            "vs_bare_matrix_products": rates[OURS] / rates[BOUND],
            "vs_prefixes_recomputed": rates[OURS] / rates[PREFIXES],
            "memory_over_asked": memory / ASKED_MEMORY,
            "own_share": share,
        },
        notes=_notes(scale),
        facts={
            "per_core_second": round(rates[OURS]),
            "asked": ASKED_RATE,
            "gigabytes_of_3000_experts": round(memory, 3),
        },
    )


class Clocked:
    """A group of hosts that adds up the time its calls take."""

    def __init__(self, hosts: Sequence[ExpertHost]) -> None:
        self._group = LocalWorkerGroup(hosts)
        self.size, self.seconds = self._group.size, 0.0

    def call(
        self,
        method: str,
        shared: Mapping[str, Any] | None = None,
        per_worker: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[Any]:
        begun = time.process_time()
        answers = self._group.call(method, shared, per_worker)
        self.seconds += time.process_time() - begun
        return answers

    def close(self) -> None:
        self._group.close()


def filter_settings(prefixes: StablePrefixes, folder: Path) -> FilterSettings:
    """Settings of a filter whose order of draws no ledger keeps."""
    return FilterSettings(prefixes=prefixes, private=folder, secret=partial(os.urandom, 32))


def own_share(job: Job) -> float:
    """Return the filter's part of the CPU time of its draws, hosts' calls left out."""
    scale = job.scale
    prefixes = draws_of(scale, scale.draws + 1)
    hosts, noise = Clocked([job.some]), SecureNoise()
    with tempfile.TemporaryDirectory() as folder:
        filtered = SvtFilter(filter_settings(prefixes, Path(folder)))
        filtered.step(0, hosts, noise, reserved=0)
        hosts.seconds, begun = 0.0, time.process_time()
        for index in range(1, scale.draws + 1):
            filtered.step(index, hosts, noise, reserved=index)
        whole = time.process_time() - begun
    return 1 - hosts.seconds / whole


def resident() -> float:
    """Return the largest memory of this process so far, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def _cells(rates: Mapping[str, float], scale: Scale) -> list[dict[str, Any]]:
    job = 3_000 * 60 * scale.steps
    return [
        {
            "scoring": name,
            "(prefix x expert) a core-second": rate,
            "core-seconds for 60 trajectories of 3,000 experts": job / rate,
        }
        for name, rate in rates.items()
    ]


def _notes(scale: Scale) -> tuple[str, ...]:
    return (
        f"Experts of {'-'.join(map(str, scale.widths))} with relu, trajectories of"
        f" {scale.steps} steps; {scale.scored} experts a turn, {scale.recomputed} where prefixes"
        " are recomputed, one in the literal form, which is charged for a mean prefix's states.",
        f"Asked: {ASKED_RATE:,} a core-second, {ASKED_RATIO:,} times the literal form,"
        f" {ASKED_MEMORY:g} GB for 3,000 experts, a share of the filter below .1 (it falls with the"
        f" number of experts; here {scale.scored}).",
    )


def main(arguments: list[str]) -> Result:
    """Run from the command line; ``--scaling`` measures hosts over actors instead."""
    if "--scaling" in arguments:
        from benchmarks import svt_filter_scaling

        rest = [argument for argument in arguments if argument != "--scaling"]
        return harness.main("svt_filter_scaling", svt_filter_scaling.run, rest)
    return harness.main("svt_filter", run, arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
