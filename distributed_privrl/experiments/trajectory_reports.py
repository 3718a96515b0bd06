"""The section of a report that shows whole trajectories, for either audience."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.labels import column_labels, shown_columns
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.metadata import DRIFT_KEY, SEAM_KEY, SUPPORT_KEY, DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments import maze_layout
from distributed_privrl.evaluation import plots, trajectory_plots
from distributed_privrl.evaluation.autocorrelation import autocorrelation
from distributed_privrl.evaluation.report import WHOLE_TRAJECTORIES, Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.comparison import is_maze
from distributed_privrl.experiments.drift_report import drift_metrics, drift_verdict
from distributed_privrl.experiments.samples import SHOWN_TRAJECTORIES, sampled_trajectories

LAGS = 50
_COLUMNS = 8
_NUMBERS = ("return", "length")
_JOINED = 0.8
"""Share of a step above which the error between steps says that they have nothing in common."""
_SEAMS = {
    "inside": "inside fragments",
    "at_seams": "where fragments meet",
    "of_a_step": "of one step, to compare with",
}
_GAPS = {"inside": "|s' - next s|", "at_seams": "|s' - next s|", "of_a_step": "|s' - s|"}


def returns_and_lengths(trajectories: Trajectories) -> NDArray[np.float64]:
    """Return the sum of rewards and the number of steps of each trajectory, ``(K, 2)``."""
    trajectory = np.repeat(np.arange(len(trajectories)), trajectories.lengths)
    returns = np.bincount(trajectory, trajectories.rewards, minlength=len(trajectories))
    return np.stack([returns, trajectories.lengths], axis=1)


def share_terminated(trajectories: Trajectories) -> float:
    """Return the share of trajectories whose last step terminates, not truncates, them."""
    ends = trajectories.offsets[1:][trajectories.lengths > 0] - 1
    return float(trajectories.terminated[ends].mean()) if len(ends) else 0.0


def release_warnings(info: DatasetInfo) -> list[str]:
    """Return what a user must know of synthetic trajectories before using them, if anything.

    Args:
        info: of the released dataset; figures in its metadata are post-processing.
    """
    return [text.strip() for text in _verdicts(_said(info), info) if text]


def _verdicts(said: Mapping[str, Any], info: DatasetInfo) -> tuple[str, ...]:
    """Return what figures in a release's metadata say, each nothing where all is well."""
    return (
        verdict(said.get(SEAM_KEY, {})),
        support_verdict(said.get(SUPPORT_KEY)),
        drift_verdict(said.get(DRIFT_KEY, {}), info),
    )


def trajectory_sections(
    store: DatasetStore,
    source: Sourced[str],
    others: Mapping[str, str],
    maze: str | None,
) -> list[Section]:
    """Return a section on paths, returns, lengths, memory and seams; none on transitions.

    Args:
        store: datasets.
        source: id of the release; what it is to the world, all of the section is.
        others: ids of datasets shown beside it, by the name in the legend: public ones, and real
            ones where the source is private.
        maze: environment id, for a map.

    Raises:
        ConfigError: the release holds trajectories, and another dataset transitions.
    """
    info = store.info(source.content)
    if info.kind == "transitions":
        return []
    shown = source.then(lambda made: _some_of_each(store, {"synthetic": made, **others}))
    told = _NUMBERS if info.has_reward else _NUMBERS[1:]
    numbers = shown.then(
        lambda every: {
            name: returns_and_lengths(some)[:, -len(told) :] for name, some in every.items()
        }
    )
    figures = [
        numbers.figure(
            lambda found: plots.column_histograms(found, told),
            " and ".join(f"{one}s" for one in told).capitalize(),
        ),
        shown.figure(
            lambda every: _memory(every, info),
            "Correlation of each column with itself, steps later",
        ),
    ]
    if maze is not None and is_maze(maze):
        figures.append(
            shown.figure(
                lambda every: trajectory_plots.maze_paths(
                    {"synthetic": every["synthetic"]}, maze_layout(maze)
                ),
                "Paths of synthetic trajectories",
            )
        )
    said = source.then(lambda made: _said(store.info(made)))
    return [
        Section(
            title=WHOLE_TRAJECTORIES,
            explanation="A trajectory is drawn in fragments, or steps, each after the last step of"
            " the one before it; two neighbouring steps then each hold the state"
            " between them." + "".join(_verdicts(said.content, info)),
            metrics=[
                _whole_length(store, source),
                *_trajectory_metrics(shown, numbers, told),
                *_seam_metrics(said.then(lambda found: found.get(SEAM_KEY, {}))),
                *_support_metrics(said.then(lambda found: found.get(SUPPORT_KEY))),
                *drift_metrics(said.then(lambda found: found.get(DRIFT_KEY, {})), info),
            ],
            figures=figures,
        )
    ]


def _some_of_each(store: DatasetStore, datasets: Mapping[str, str]) -> dict[str, Trajectories]:
    return {name: sampled_trajectories(store, dataset) for name, dataset in datasets.items()}


def _said(info: DatasetInfo) -> Mapping[str, Any]:
    """Return what a dataset that a run made says of itself; it is what its rows are."""
    return info.metadata.open(Purpose.RELEASED)


def _whole_length(store: DatasetStore, source: Sourced[str]) -> Metric:
    """Return the mean length of all trajectories of the release, which its metadata say."""

    def mean_length(made: str) -> float:
        info = store.info(made)
        steps, count = (
            one.open(Purpose.RELEASED) for one in (info.total_steps, info.total_trajectories)
        )
        return steps / count

    return Metric(
        name="mean length of all, synthetic",
        value=source.value(mean_length),
        explanation="steps over trajectories of the whole dataset",
    )


def _means(numbers: NDArray[np.float64]) -> list[float]:
    """Return the mean of each column over the trajectories whose number is finite."""
    finite = [column[np.isfinite(column)] for column in numbers.T]
    return [float(some.mean()) if len(some) else float("nan") for some in finite]


def _trajectory_metrics(
    shown: Sourced[dict[str, Trajectories]],
    numbers: Sourced[dict[str, NDArray[np.float64]]],
    told: tuple[str, ...],
) -> list[Metric]:
    metrics = [
        Metric(
            name="trajectories shown",
            value=shown.value(lambda every: len(every["synthetic"])),
            explanation=f"synthetic ones; means and figures are of about {SHOWN_TRAJECTORIES}"
            " random trajectories of a dataset, of all where it has no more",
        )
    ]
    for index, column in enumerate(told):
        for name in numbers.content:
            mean = numbers.then(itemgetter(name)).then(_means)
            value = mean.value(itemgetter(index))
            metrics.append(Metric(name=f"mean {column}, {name}", value=value))
    for name in shown.content:
        metrics.append(
            Metric(
                name=f"share that terminates, {name}",
                value=shown.then(itemgetter(name)).value(share_terminated),
                explanation="the others were cut by a time limit",
            )
        )
    return metrics


def verdict(errors: Mapping[str, float | None]) -> str:
    """Return what seam errors say of a release whose steps do not join; else nothing.

    Args:
        errors: figures of `stitching.SeamErrors`.
    """
    inside, step = errors.get("inside"), errors.get("of_a_step")
    if inside is None or step is None or inside < _JOINED * step:
        return ""
    return (
        " STEPS DO NOT JOIN: between two of them lies nearly as much as in one. The network has"
        " not learned to go on; take more public pre-training, a smaller network, more units, or"
        " method privorl_ar_j, whose steps join exactly, before you use these trajectories."
    )


def support_verdict(support: Mapping[str, int] | None) -> str:
    """Return what is to be said of a support that keeps nothing in; else nothing."""
    if support is None or support["visited"]:
        return ""
    return (
        " NO CELL OF THE SUPPORT REACHED ITS THRESHOLD: it was paid and does nothing. Take fewer"
        " cells, or more of epsilon for it."
    )


def _support_metrics(support: Sourced[Any]) -> list[Metric]:
    if support.content is None:
        return []
    return [
        Metric(
            name="cells of the support",
            value=support.value(itemgetter("visited")),
            explanation=f"of {support.content['cells']}; where enough units are, found with noise",
        ),
        Metric(
            name="trajectories outside the support",
            value=support.value(itemgetter("trajectories_outside")),
            explanation="kept after all attempts to draw them again",
        ),
    ]


def _seam_metrics(errors: Sourced[Mapping[str, float | None]]) -> list[Metric]:
    return [
        Metric(
            name=f"seam error {words}",
            value=errors.value(itemgetter(name)),
            explanation=f"mean {_GAPS[name]} of the samples, in public deviations",
        )
        for name, words in _SEAMS.items()
        if errors.content.get(name) is not None
    ]


def _memory(trajectories: Mapping[str, Trajectories], info: DatasetInfo) -> bytes:
    layout = RowLayout(info.observation_space, info.action_space)
    longest = max(int(some.lengths.max(initial=1)) for some in trajectories.values())
    lags = max(1, min(LAGS, longest - 1))
    shown = shown_columns(info)
    shown = shown[shown < layout.blocks["reward"].stop][:_COLUMNS]
    labels = column_labels(info)
    names = tuple(labels[place] for place in shown)
    curves = {
        name: autocorrelation(some, layout, lags)[:, shown] for name, some in trajectories.items()
    }
    return trajectory_plots.autocorrelations(curves, names)
