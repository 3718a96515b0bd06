"""What a score answers to: curves of a sweep's results over one searched value."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.intervals import mean_interval
from distributed_privrl.evaluation.plots import ImageFormat, colours_of, render

Responses = Mapping[str, Mapping[float, Sequence[float]]]
"""Scores by the value on the axis, by the name in the legend."""


def response_curves(
    responses: Responses,
    *,
    xlabel: str,
    ylabel: str,
    logarithmic: bool = False,
    image_format: ImageFormat = "svg",
) -> bytes:
    """Return the mean score over a searched value, with 95 % intervals of means where there are.

    Args:
        responses: scores of independent trials; a point of a single one has no interval.
        xlabel: what is searched.
        ylabel: what the score is.
        logarithmic: the axis is.
        image_format: svg or png.

    Raises:
        ConfigError: no curve, or a point without scores.
    """
    if not responses or any(not scores for one in responses.values() for scores in one.values()):
        raise ConfigError("responses must hold a curve, and a score at least at each of its points")
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for (label, points), colour in zip(responses.items(), colours_of(responses), strict=True):
        places = sorted(points)
        means = np.array([np.mean(points[place]) for place in places])
        axes.plot(places, means, color=colour, marker="o", label=label)
        for place, mean in zip(places, means, strict=True):
            if (interval := mean_interval(points[place])) is not None:
                ends = [[mean - interval.low], [interval.high - mean]]
                axes.errorbar([place], [mean], yerr=ends, color=colour, capsize=3)
    if logarithmic:
        axes.set_xscale("log")
    axes.set_xlabel(xlabel)
    axes.set_ylabel(ylabel)
    if len(responses) > 1 or next(iter(responses)):
        axes.legend()
    return render(figure, image_format)
