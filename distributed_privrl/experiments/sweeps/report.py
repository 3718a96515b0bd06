"""A sweep's report: the trials, the chosen configuration, and what the score answers to."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.evaluation.figures import AnyFigure, PrivateFigure, PublicFigure
from distributed_privrl.evaluation.intervals import mean_interval
from distributed_privrl.evaluation.report import Metric, ReportValue, Section, write_report
from distributed_privrl.evaluation.response_plots import Responses, response_curves
from distributed_privrl.experiments.sweeps.config import PublicSelection, ScoreConfig, Sweep
from distributed_privrl.experiments.sweeps.job import TrialResult
from distributed_privrl.experiments.sweeps.jobs import SweepDirectory
from distributed_privrl.experiments.sweeps.outcome import SEED, settings_of
from distributed_privrl.experiments.sweeps.points import short_names
from distributed_privrl.privacy.metrics import PublicValue

_MOST_LINES = 6
_WIDE = 20.0
"""Between the ends of an axis that is drawn on a logarithmic scale."""


def write_sweep_report(
    sweep: Sweep, results: Sequence[TrialResult], directory: SweepDirectory
) -> Path:
    """Write report.html and report.json of a sweep, and return the page's path.

    Args:
        sweep: what was asked for.
        results: of all trials.
        directory: of the sweep.

    Privacy: of a public sweep all values are public. Where trials read sensitive rows, each has a
    report of its own that may leave; the one over all of them, which no single certificate covers,
    lies in ``private/``.
    """
    public = isinstance(sweep.selection, PublicSelection)
    folder = directory.path if public else directory.make_private()
    page = folder / "report.html"
    write_report(
        page,
        folder / "report.json",
        title=f"Sweep of {sweep.base.method} on {_rows(sweep)}",
        certificate={"status": "non_private", "method": sweep.base.method},
        sections=[_chosen(sweep, results, public), *_curves(sweep, results, public)],
        audience="public" if public else "private",
    )
    return page


def _rows(sweep: Sweep) -> str:
    selection, dataset = sweep.selection, sweep.base.data.sensitive
    if isinstance(selection, PublicSelection):
        return f"{selection.stand_in}, which stands in for {dataset}"
    return dataset


def _chosen(sweep: Sweep, results: Sequence[TrialResult], public: bool) -> Section:
    """Return the settings, the best first."""

    def shown(value: Any) -> ReportValue:
        return PublicValue(value) if public else value

    names = short_names(sweep.search)
    metrics = []
    for setting in settings_of(results):
        said = ", ".join(f"{names[path]}={value}" for path, value in setting.values.items())
        interval = mean_interval(setting.scores)
        between = "1 trial, no interval" if interval is None else f"95 %: {interval:.3g}"
        metrics.append(Metric(name=said, value=shown(setting.mean), explanation=between))
    failed = sum(one.score is None for one in results)
    metrics.append(Metric(name="trials", value=shown(len(results))))
    metrics.append(Metric(name="trials without a score", value=shown(failed)))
    why = [f"{one.name}: {one.failed}" for one in results if one.failed]
    return Section(
        title="Settings, the best first",
        explanation=f"Score: {score_name(sweep.selection.score)}. chosen.yaml has the first one."
        + "".join(f" Failed: {one}." for one in why),
        metrics=metrics,
    )


def score_name(score: ScoreConfig) -> str:
    """Return what a score is, in words."""
    if score.by == "agents":
        return f"mean return of {score.trainer or 'an agent'} trained on the release"
    return "likeness to public rows" if score.by == "fidelity" else "what the policy is worth"


def _curves(sweep: Sweep, results: Sequence[TrialResult], public: bool) -> list[Section]:
    names, figures = short_names(sweep.search), list[AnyFigure]()
    kind = PublicFigure if public else PrivateFigure
    for path in sweep.search:
        places = {one.values[path] for one in results if one.score is not None}
        numbers = all(isinstance(place, int | float) for place in places)
        if path == SEED or len(places) < 2 or not numbers:
            continue
        image = response_curves(
            responses_of(results, path, sweep),
            xlabel=names[path],
            ylabel=score_name(sweep.selection.score),
            logarithmic=min(places) > 0 and max(places) / min(places) >= _WIDE,
        )
        figures.append(kind(image=image, caption=f"{names[path]} against the score"))
    if not figures:
        return []
    return [
        Section(
            title="What the score answers to",
            explanation="Each point is the mean of the trials with this value; other values are"
            " averaged, but for those in the legend. Bars: 95 % of the mean, by Student's t.",
            figures=figures,
        )
    ]


def responses_of(results: Sequence[TrialResult], path: str, sweep: Sweep) -> Responses:
    """Return scores by a searched value, and by the values of another grid, if it has few.

    Args:
        results: of all trials.
        path: of what is searched.
        sweep: what was asked for.
    """
    names = short_names(sweep.search)
    grids = {
        other: axis.grid
        for other, axis in sweep.search.items()
        if other not in (path, SEED) and axis.grid is not None and len(axis.grid) <= _MOST_LINES
    }
    beside = max(grids, key=lambda other: other.endswith("epsilon"), default=None)
    found: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for one in results:
        if one.score is None:
            continue
        label = "" if beside is None else f"{names[beside]} {one.values[beside]}"
        found[label][float(one.values[path])].append(one.score)
    return {label: {**points} for label, points in found.items()}
