"""Measures how fast a machine is, by the product's own run on invented rows."""

import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gymnasium.spaces import Box

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.registry import parse_config, plan_run
from distributed_privrl.experiments.rehearsal import rehearse
from distributed_privrl.experiments.speeds import Speeds

SMALL, LARGE = (32,), (512,)
"""Hidden layers of the two networks that are measured."""
ROUNDS, BATCH, STEPS, SIZE, UNITS = 60, 512, 200, 40_000, 20_000
AGENT_STEPS = 2_000
"""Of an agent whose network and batch are so small that nothing but its steps takes time."""
_BOUNDS = """observation: {low: [0, 0, 0, 0, 0, 0], high: [1, 1, 1, 1, 1, 1]}
action: {low: [-1, -1], high: [1, 1]}
reward: [0, 1]
"""


def measure(machine: str, *, progress: Progress = silent) -> Speeds:
    """Return the speeds of this machine, from small runs on invented rows; a minute or two.

    Args:
        machine: what it is called.
        progress: told where the work is.
    """
    small, large = (_measured(hidden, progress) for hidden in (SMALL, LARGE))
    rows = {
        "private": ROUNDS * BATCH,
        "learned": STEPS * BATCH,
        "drawn": SIZE,
    }
    private, learned, drawn = (
        max((large.seconds[name] - small.seconds[name]) / (count * large.more(small)), 1e-12)
        for name, count in rows.items()
    )
    rounds = small.seconds["private"] - rows["private"] * small.weights * private
    known = sum(small.seconds.values())
    return Speeds(
        start=max(small.all_seconds - known, 0.5),
        joint_count=small.seconds["marginals"] / max(small.joint_counts, 1),
        round=max(rounds / ROUNDS, 1e-4),
        private_row=private,
        learned_step=_seconds_of_step(),
        learned_row=learned,
        drawn_row=drawn,
        memory=1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        machine=machine,
    )


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """What a small run took.

    Args:
        seconds: of its stages, by name.
        all_seconds: of the whole of it.
        weights: of its network.
        joint_counts: that it estimated.
    """

    seconds: dict[str, float]
    all_seconds: float
    weights: int
    joint_counts: float

    def more(self, other: "_Measured") -> int:
        """Return how many weights more than the other it has."""
        return self.weights - other.weights


def _seconds_of_step() -> float:
    """Train a tiny agent on invented rows; return the seconds of a step, the first tenth aside."""
    from distributed_privrl.agents.bc import BC
    from distributed_privrl.agents.settings import BCConfig
    from distributed_privrl.agents.training import train_agent

    source, space = Streams(0).numpy("measured rows"), Box(-1, 1, (4,))
    rows = source.uniform(-1, 1, (BATCH, 4)).astype(np.float32)
    ended = np.zeros(BATCH, np.bool_)
    times: list[float] = []
    train_agent(
        BC(BCConfig(hidden=(8, 8), batch_size=8)),
        Transitions(
            observations=rows,
            actions=rows,
            rewards=rows[:, 0],
            next_observations=rows,
            terminated=ended,
            truncated=ended,
            unit_ids=np.arange(BATCH, dtype=np.uint64),
        ),
        observation_space=space,
        action_space=space,
        steps=AGENT_STEPS,
        streams=Streams(0),
        progress=lambda _: times.append(time.perf_counter()),
    )
    counted = times[AGENT_STEPS // 10 :]
    return (counted[-1] - counted[0]) / (len(counted) - 1)


_STAGES = {
    "marginals": "marginals",
    "public pre-training": "learned",
    "private rounds": "private",
    "sampling": "drawn",
}
"""What a run calls its stages, and what they are here."""


def _measured(hidden: tuple[int, ...], progress: Progress) -> _Measured:
    """Run a small hybrid: marginals, pre-training, rounds and drawing in one."""
    with tempfile.TemporaryDirectory(prefix="privrl-measure-") as folder:
        work = Path(folder)
        (work / "bounds.yaml").write_text(_BOUNDS)
        config = _config(work / "bounds.yaml", hidden)
        plan = plan_run(config, DatasetStore(work / "none"))
        spent: dict[str, float] = {}
        last = time.perf_counter()

        def told(stage: str, done: float, total: float, note: str = "") -> None:
            nonlocal last
            now = time.perf_counter()
            if (name := _STAGES.get(stage)) is not None and done:
                spent[name] = spent.get(name, 0.0) + now - last
            last = now
            progress(f"measuring, {stage}", int(done), int(total), note)

        start = time.perf_counter()
        rehearse(
            config, LocalExecutor(), work=work, store=DatasetStore(work / "none"), progress=told
        )
        assert plan.effort is not None
        return _Measured(
            seconds={name: spent.get(name, 0.0) for name in _STAGES.values()},
            all_seconds=time.perf_counter() - start,
            weights=round(plan.effort.private_rows / (ROUNDS * BATCH)),
            joint_counts=plan.effort.joint_counts,
        )


def _config(bounds: Path, hidden: tuple[int, ...]) -> RunConfig:
    """Return the run that is measured."""
    values = {
        "method": "privorl_ar",
        "data": {
            "sensitive": "measured/rows-v0",
            "unit": "transition",
            "units": UNITS,
            "bounds": str(bounds),
        },
        "privacy": {"epsilon": 4.0, "delta": 1e-6},
        "model": {"bins": 32, "hidden": list(hidden)},
        "training": {
            "rounds": ROUNDS,
            "expected_batch_size": BATCH,
            "pretraining": {
                "from": "marginals",
                "steps": STEPS,
                "batch_size": BATCH,
                "marginals": {"selection": {"tables": 6}},
            },
        },
        "output": {"dataset": "measured/synthetic-v0", "size": SIZE},
        "runtime": {"executor": "local", "workers": 1},
    }
    return parse_config(values, source="a measurement")
