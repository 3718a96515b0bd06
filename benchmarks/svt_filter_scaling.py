"""The sparse-vector filter over hosts that are Ray actors: 1, 2 and 4 on one problem.

The same experts are split over the hosts; each loads its own. The filter runs in this process, so
that its CPU time beside the hosts' is its own share with all that goes to them and comes back.
"""

import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.harness import Result
from benchmarks.svt_filter import (
    FULL,
    QUICK,
    RandomExperts,
    Scale,
    draws_of,
    filter_settings,
    host_spec,
)
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.methods.expert.filter import SvtFilter
from distributed_privrl.methods.expert.hosting import ExpertHost
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.runtime.executor import RayExecutor

HOST = "ray::ExpertHost"
HOSTS = (1, 2, 4)


def run(quick: bool) -> Result:
    """Measure draws with each number of hosts."""
    scale = QUICK if quick else FULL
    cells = [_measure(scale, hosts) for hosts in (HOSTS[:2] if quick else HOSTS)]
    first = cells[0]
    return Result(
        cells=cells,
        ratios={
            "own_share": max(cell["filter's share of CPU"] for cell in cells),
            "cpu_most_vs_fewest_hosts": cells[-1]["CPU s a draw"] / first["CPU s a draw"],
            "wall_2_vs_1_hosts": cells[1]["wall s a draw"] / first["wall s a draw"],
        },
        notes=[
            f"{scale.experts:,} experts of {'-'.join(map(str, scale.widths))} with relu, prefixes"
            f" of a trajectory of {scale.steps} steps a draw; {scale.draws} draws. Hosts share"
            " two processors."
        ],
    )


def _measure(scale: Scale, hosts: int) -> dict[str, Any]:
    executor = RayExecutor(workers=hosts, cpus_per_worker=min(1.0, 2 / hosts))
    limits = [scale.experts * host // hosts for host in range(hosts + 1)]
    group = executor.start(
        ExpertHost,
        [
            host_spec(RandomExperts(scale=scale, first=first, stop=stop), scale, first=first)
            for first, stop in pairwise(limits)
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        cell = _draws(group, scale, Path(folder))
    group.close()
    executor.close()
    return {"hosts": hosts, **cell}


def _draws(group: WorkerGroup, scale: Scale, folder: Path) -> dict[str, Any]:
    filtered = SvtFilter(filter_settings(draws_of(scale, scale.draws + 1), folder))
    noise = SecureNoise()
    filtered.step(0, group, noise, reserved=0)
    own, hosts, begun = time.process_time(), _hosts_cpu(), time.perf_counter()
    for index in range(1, scale.draws + 1):
        filtered.step(index, group, noise, reserved=index)
    wall = (time.perf_counter() - begun) / scale.draws
    mine = (time.process_time() - own) / scale.draws
    theirs = (_hosts_cpu() - hosts) / scale.draws
    return {
        "wall s a draw": wall,
        "CPU s a draw": mine + theirs,
        "hosts' CPU s": theirs,
        "filter's CPU s": mine,
        "filter's share of CPU": mine / (mine + theirs),
        "(prefix x expert) a second": scale.experts * scale.steps / wall,
    }


def _hosts_cpu() -> float:
    """Return the CPU seconds of all hosts."""
    used, commands = processes.cpu_by_process(), processes.family()
    return sum(seconds for pid, seconds in used.items() if commands.get(pid, "").startswith(HOST))
