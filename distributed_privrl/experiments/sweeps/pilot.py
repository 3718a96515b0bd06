"""What a trial of a sweep takes on this machine: a line through short ones on public rows."""

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig, with_overrides
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.sweeps.config import Axis, PublicSelection, Sweep
from distributed_privrl.experiments.sweeps.costs import Pilot, worked_seconds
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory
from distributed_privrl.experiments.sweeps.points import points_of
from distributed_privrl.experiments.sweeps.preparing import prepared_jobs
from distributed_privrl.experiments.sweeps.trial import run_trial
from distributed_privrl.experiments.trials import EVALUATIONS, TRAINING

AGENT_STEPS = "evaluation.steps"
COUNTS = (
    "training.rounds",
    "training.pretraining.steps",
    "training.policy.steps",
    "output.size",
    AGENT_STEPS,
)
"""What a trial's time is proportional to, beside what it takes whatever they are."""
SECONDS = 10.0
"""That the shorter trial is meant to take."""
_LEAST, _MOST, _LONGER = 0.02, 0.25, 3
_RLLIB = "rllib_"


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """CPU seconds of a short trial: of its run, and of its agents and its score."""

    run: float
    judging: float


def measured_pilot(
    sweep: Sweep,
    store: DatasetStore,
    *,
    rows: str | None = None,
    ledger: str | None = None,
    progress: Progress = silent,
) -> Pilot:
    """Run the first trial three times with few rounds and steps, and return what it would take.

    Two lengths tell what grows with them from what does not; what the first of the three takes
    beyond the second is imports, and does not count. All of it lies in a folder that is removed.

    Args:
        sweep: whoever pays for it.
        store: has the public rows.
        rows: their id; None: what stands in for a public sweep.
        ledger: URL of the one that is asked whose rows they are; None: as everywhere.
        progress: told where it is.

    Raises:
        ConfigError: there are no public rows, they do not fit, or the trial fails.
        UnsafeError: the rows were not declared public, or are somebody's.

    Privacy: as of a public sweep (`prepared_jobs`): the sensitive dataset is not opened, and
    nothing is charged.
    """
    with tempfile.TemporaryDirectory(prefix="privrl-pilot-") as folder:
        short = _one_trial(sweep, rows)
        work = worked_seconds(short, store)
        share = _share(short.base, work)
        begun = time.process_time()
        taken: list[_Taken] = []
        shares = (share, share, _LONGER * share) if share < 1 else (1.0, 1.0)
        for number, part in enumerate(shares):
            progress("pilot", number, len(shares), "a short trial on public rows")
            out = Path(folder) / str(number)
            taken.append(_run(_shortened(short, part), out, store, ledger, progress))
        progress("pilot", len(shares), len(shares))
        selection, (less, more) = short.selection, taken[-2:]
        assert isinstance(selection, PublicSelection)
        fixed, growing = _line(less.run, more.run, shares[-2:])
        return Pilot(
            rows=selection.stand_in,
            fixed=fixed,
            growing=growing,
            judging=sum(_line(less.judging, more.judging, shares[-2:])),
            work=work,
            spent=time.process_time() - begun,
        )


def _one_trial(sweep: Sweep, rows: str | None) -> Sweep:
    """Return a public sweep of the first trial alone, in this process, with plain agents.

    Raises:
        ConfigError: there are no public rows.
    """
    selection = sweep.selection
    public = isinstance(selection, PublicSelection)
    stand_in = rows or (selection.stand_in if isinstance(selection, PublicSelection) else None)
    if stand_in is None:
        raise ConfigError(
            f"selection.pays={selection.pays}: a pilot looks at public rows alone: name some with"
            " --rows ID"
        )
    score = selection.score
    if score.trainer is not None:
        score = score.model_copy(update={"trainer": score.trainer.removeprefix(_RLLIB)})
    environment = selection.environment if isinstance(selection, PublicSelection) else None
    alone = PublicSelection(
        pays="public",
        stand_in=stand_in,
        environment=environment if public and rows is None else None,
        score=score,
    )
    first = points_of(replace(sweep, selection=alone))[0]
    search = {path: Axis(grid=(value,)) for path, value in first.values.items()}
    return _changed(
        replace(sweep, selection=alone, search=search),
        {
            "runtime.executor": "local",
            "runtime.workers": 1,
            "runtime.pretrained": "null",
            **_plain(first.config),
        },
    )


def _plain(config: RunConfig) -> dict[str, Any]:
    names = dict.fromkeys(name.removeprefix(_RLLIB) for name in config.evaluation.trainers)
    return {"evaluation.trainers": f"[{', '.join(names)}]"} if names else {}


def _changed(sweep: Sweep, changes: Mapping[str, Any]) -> Sweep:
    """Return a sweep of one trial with other values, of axes too."""
    search = {
        path: Axis(grid=(changes[path],)) if path in changes else axis
        for path, axis in sweep.search.items()
    }
    others = [f"{path}={value}" for path, value in changes.items() if path not in search]
    changed = replace(sweep, values=with_overrides(sweep.values, others), search=search)
    point = {path: axis.corners[0] for path, axis in search.items()}
    return replace(changed, base=changed.config_of(point))


def _counts(config: RunConfig) -> Iterator[tuple[str, int]]:
    """Yield what a trial's time is proportional to, as far as its method has it."""
    for path in COUNTS:
        if path == AGENT_STEPS and not config.evaluation.trainers:
            continue
        value: Any = config
        for name in path.split("."):
            value = getattr(value, name, None)
        if isinstance(value, int) and value > 1:
            yield path, value


def _share(config: RunConfig, work: float | None) -> float:
    """Return the share of rounds and steps of the shorter trial; 1: nothing can be left out."""
    counts = [count for _, count in _counts(config)]
    if not counts or all(count < 1 / _MOST for count in counts):
        return 1.0
    wished = _MOST if not work else SECONDS / work
    return float(min(_MOST, max(_LEAST, wished)))


def _shortened(sweep: Sweep, share: float) -> Sweep:
    """Return it with fewer rounds and steps; agents are tried as often as in a whole one."""
    counts = {path: max(1, round(share * count)) for path, count in _counts(sweep.base)}
    if (steps := counts.get(AGENT_STEPS)) is not None and share < 1:
        counts[AGENT_STEPS] = EVALUATIONS * max(1, round(steps / EVALUATIONS))
    return _changed(sweep, counts)


def _run(
    sweep: Sweep, out: Path, store: DatasetStore, ledger: str | None, progress: Progress
) -> _Taken:
    """Run the one trial of a sweep, and return what it took.

    Raises:
        ConfigError: it failed.
    """
    (job,) = prepared_jobs(
        sweep, SweepDirectory(out), store=store, ledger=ledger, resume=False, anyway=True
    )
    judged: list[float] = []

    def told(stage: str, done: float, total: float, note: str = "") -> None:
        if stage == TRAINING and not judged:
            judged.append(time.process_time())
        progress(f"pilot, {stage}", int(done), int(total), note)

    begun = time.process_time()
    with closing(LocalExecutor()) as executor:
        found = run_trial(job, executor, ledger="", progress=told)
    ended = time.process_time()
    if found.failed:
        raise ConfigError(f"the pilot's trial failed: {found.failed}")
    split = judged[0] if judged else ended
    return _Taken(run=split - begun, judging=ended - split)


def _line(one: float, other: float, shares: tuple[float, float]) -> tuple[float, float]:
    """Return what does not grow, and what the whole adds to it: a line through two lengths.

    Args:
        one: CPU seconds of the shorter.
        other: CPU seconds of the longer.
        shares: of the whole, rising; equal where nothing could be left out.

    Example:
        >>> _line(2.0, 4.0, (0.125, 0.375))
        (1.0, 8.0)
    """
    less, more = shares
    if less == more:
        return 0.0, other
    slope = max(0.0, (other - one) / (more - less))
    return max(0.0, other - slope * more), slope
