"""A table and a figure of a public sweep: scores over its axis for each epsilon, seeds together.

It reads what `privrl sweep` left, also where that was cut short: what has not ended is an empty
cell. `tune_configs/sweeps` has those of figures 6 (curiosity) and 8 (horizon) of the PrivORL paper.

    python -m benchmarks.sweep_figures --sweep runs/sweep-figure8 [--out DIR] [--save]
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Result
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.labels import column_labels
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.intervals import mean_interval
from distributed_privrl.evaluation.response_plots import response_curves
from distributed_privrl.experiments.samples import sampled_rows
from distributed_privrl.experiments.sweeps.config import PublicSelection, Sweep, load_sweep
from distributed_privrl.experiments.sweeps.job import RESULT, TrialResult
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory
from distributed_privrl.experiments.sweeps.outcome import SEED
from distributed_privrl.experiments.sweeps.points import points_of, short_names
from distributed_privrl.experiments.sweeps.report import responses_of, score_name

EPSILON = "privacy.epsilon"


@dataclass(frozen=True, kw_only=True)
class Swept:
    """A public sweep over one axis, epsilon and seeds, as far as it has come.

    Args:
        sweep: what was asked for.
        directory: of it.
        trials: those that have ended with a score.
        asked: number of all trials.
        axis: path of the axis.
    """

    sweep: Sweep
    directory: SweepDirectory
    trials: Sequence[TrialResult]
    asked: int
    axis: str

    @property
    def name(self) -> str:
        """Of the axis, in words."""
        return short_names(self.sweep.search)[self.axis]

    def of(self, place: Any, epsilon: Any) -> list[TrialResult]:
        """Return trials of one cell, one a seed."""
        wanted = {self.axis: place, EPSILON: epsilon}
        return [one for one in self.trials if wanted.items() <= one.values.items()]


def read_sweep(folder: Path) -> Swept:
    """Return what lies in a sweep's folder.

    Raises:
        ConfigError: it is no public sweep over epsilon, seeds and one more grid.
    """
    directory = SweepDirectory(folder)
    sweep = load_sweep(directory.file)
    axes = [path for path in sweep.search if path not in (SEED, EPSILON)]
    grids = [path for path, axis in sweep.search.items() if axis.grid is not None]
    if not isinstance(sweep.selection, PublicSelection) or len(axes) != 1 or len(grids) != 3:
        raise ConfigError(f"{folder} is no public sweep of grids over epsilon, seed and an axis")
    points = points_of(sweep)
    found = [TrialResult.read(directory.trials / point.name / RESULT) for point in points]
    ended = [one for one in found if one is not None and one.score is not None]
    return Swept(sweep=sweep, directory=directory, trials=ended, asked=len(points), axis=axes[0])


def cell_of(swept: Swept, place: Any, epsilon: Any) -> dict[str, Any]:
    """Return the row of a cell; figures are None where no trial has ended."""
    trials = swept.of(place, epsilon)
    scores = [float(one.score) for one in trials if one.score is not None]
    interval = mean_interval(scores) if scores else None
    near = np.array([_nearness(swept, one) for one in trials])
    return {
        swept.name: place,
        "epsilon": epsilon,
        "score": float(np.mean(scores)) if scores else None,
        "score 95 %": None if interval is None else f"{interval:.4g}",
        "score seeds": scores,
        "marginal": float(near[:, 0].mean()) if trials else None,
        "correlation": float(near[:, 1].mean()) if trials else None,
    }


def _nearness(swept: Swept, trial: TrialResult) -> tuple[float, float]:
    """Return marginal and correlation fidelity of a release to what stood in."""
    store, selection = swept.directory.datasets, swept.sweep.selection
    assert isinstance(selection, PublicSelection)
    whole = store.holds(selection.stand_in)
    real = selection.stand_in if whole else swept.sweep.base.data.sensitive
    rows = [sampled_rows(store, one) for one in (real, trial.released)]
    found = fidelity(rows[0], rows[1], column_labels(store.info(real)))
    return found.marginal, found.correlation


def differences(swept: Swept) -> dict[str, float | None]:
    """Return by how much the score rises over the axis: last value less first, mean over seeds."""
    places, epsilons = (swept.sweep.search[path].corners for path in (swept.axis, EPSILON))
    return {
        f"{swept.name} {places[-1]} less {places[0]}, epsilon {one}": _mean(_paired(swept, one))
        for one in epsilons
    }


def _paired(swept: Swept, epsilon: Any) -> list[float]:
    """Return the rise of each seed that has both ends."""
    places = swept.sweep.search[swept.axis].corners
    first, last = (
        {one.values[SEED]: one.score for one in swept.of(place, epsilon)}
        for place in (places[0], places[-1])
    )
    return [float(last[seed]) - float(first[seed]) for seed in first if seed in last]


def _interval(values: Sequence[float]) -> str:
    interval = mean_interval(values) if values else None
    return "not known" if interval is None else f"{interval:.3g}"


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None


def result_of(swept: Swept) -> Result:
    """Return table, figure and notes.

    Raises:
        ConfigError: no trial has ended.
    """
    if not swept.trials:
        raise ConfigError(f"no trial of {swept.directory.path} has ended with a score")
    sweep, selection = swept.sweep, swept.sweep.selection
    assert isinstance(selection, PublicSelection)
    places, epsilons = (sweep.search[path].corners for path in (swept.axis, EPSILON))
    score = score_name(selection.score)
    rises = [f"epsilon {one}: {_interval(_paired(swept, one))}" for one in epsilons]
    logarithmic = min(places) > 0 and max(places) / min(places) >= 10
    return Result(
        cells=[cell_of(swept, place, epsilon) for place in places for epsilon in epsilons],
        ratios=differences(swept),
        notes=[
            f"`privrl sweep` of {sweep.base.method}, public: {selection.stand_in} stands in for"
            f" {sweep.base.data.sensitive}; {len(swept.trials)} of {swept.asked} trials ended with"
            " a score, each a release of its own. A cell without a figure was not measured.",
            f"Score: {score}. Intervals: 95 % of the mean over seeds, by Student's t; the bars of"
            " the figure are the same. Marginal and correlation are means, to the stand-in.",
            f"From the first to the last {swept.name}, paired by seed, 95 %: {'; '.join(rises)}.",
        ],
        facts={"trials": len(swept.trials), "asked": swept.asked, "sweep": sweep.to_json()},
        figures={
            "png": response_curves(
                responses_of(swept.trials, swept.axis, sweep),
                xlabel=swept.name.replace("_", " "),
                ylabel=score,
                logarithmic=logarithmic,
                image_format="png",
            )
        },
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table of a sweep, its JSON line last, and save it where asked."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sweep_figures")
    parser.add_argument("--sweep", type=Path, required=True, help="the sweep's folder")
    parser.add_argument("--trials-at", default="", help="commit at which the sweep was run")
    parser.add_argument("--out", type=Path, help="folder for the table and the figure")
    parser.add_argument("--save", action="store_true", help="the same, in benchmarks/results")
    options = parser.parse_args(arguments)
    swept = read_sweep(options.sweep)
    about = {"trials_at": options.trials_at or "unknown", **harness.machine()}
    folder = options.out or (harness.RESULTS if options.save else None)
    harness.publish(f"sweep_{swept.name}", result_of(swept), about, folder=folder)


if __name__ == "__main__":
    main()
