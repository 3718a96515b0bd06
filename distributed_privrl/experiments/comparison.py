"""Sections that compare synthetic with real rows, for private reports alone."""

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import maze_layout
from distributed_privrl.evaluation import neighbours, plots
from distributed_privrl.evaluation.embedding import EmbeddingMethod, embed
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.figures import PrivateFigure
from distributed_privrl.evaluation.report import Metric, Section

if TYPE_CHECKING:
    from distributed_privrl.evaluation.trajectory_score import (
        TrajectoryScore,
        TrajectoryScoreConfig,
    )

NEIGHBOUR_ROWS = 5000
EMBEDDED_ROWS = 2000
_FEWEST_ROWS = neighbours.COVERAGE_NEIGHBOURS + 1
_PERCENTILES = (1, 50, 99)

Found = TypeVar("Found")


def attempted(compute: Callable[[], Found]) -> Found | str:
    """Return what is computed from real rows, or in words why it cannot be.

    Args:
        compute: reads real rows.

    Raises:
        StorageError: a disk that is full, or a file that cannot be read.

    Privacy: the words may quote rows: they are for ``private/``. An error that ended the command
    would tell of single rows by its exit code, its line and what was not written. No warning of a
    library is shown, in a notebook either: whether a number overflows may hang on a single row.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compute()
    except StorageError:
        raise
    except Exception as error:
        words = " ".join(f"failed: {type(error).__name__}: {error}".split())
        return words.encode("utf-8", "replace").decode("utf-8")  # a file can hold them


def attempted_sections(title: str, compute: Callable[[], Sequence[Section]]) -> list[Section]:
    """Return sections that are computed from real rows, or one that says why there are none.

    Args:
        title: of the section that says it.
        compute: reads real rows.

    Raises:
        StorageError: as in `attempted`.
    """
    found = attempted(compute)
    if isinstance(found, str):
        return [Section(title=title, metrics=[Metric(name=title, value=found)])]
    return list(found)


def is_maze(environment: str) -> bool:
    """Say whether an environment has a map."""
    return environment.startswith("privrl/Maze2D-")


def fidelity_section(
    real: NDArray[Any],
    synthetic: NDArray[Any],
    names: Sequence[str],
    maze: str | None,
    *,
    embedding: EmbeddingMethod = "pca",
) -> Section:
    """Return a section that compares synthetic with real rows; for private reports alone.

    Args:
        real: (M, D) in raw units.
        synthetic: (N, D).
        names: (D,) of the columns.
        maze: environment id, for a map.
        embedding: how rows are shown in the plane.
    """
    scores = fidelity(real, synthetic, names)
    points = embed(
        {"real": real[:EMBEDDED_ROWS], "synthetic": synthetic[:EMBEDDED_ROWS]}, method=embedding
    )
    figures = [
        PrivateFigure(
            image=plots.column_histograms({"real": real, "synthetic": synthetic}, names),
            caption="Each column",
        ),
        PrivateFigure(image=plots.embedded_points(points), caption="Rows in the plane"),
    ]
    if maze is not None and is_maze(maze):
        positions = {"real": real[:, :2], "synthetic": synthetic[:, :2]}
        image = plots.maze_positions(positions, maze_layout(maze))
        figures.append(PrivateFigure(image=image, caption="Positions"))
    return Section(
        title="Fidelity against the real rows",
        explanation="Computed from real rows without noise. Marginal and correlation are PrivORL's"
        " means over numbers and flags; one-hot columns of categories are left out.",
        metrics=[
            Metric(name="marginal", value=scores.marginal, explanation="1: every column agrees"),
            Metric(
                name="correlation", value=scores.correlation, explanation="1: every pair agrees"
            ),
            *_neighbour_metrics(real, synthetic),
        ],
        figures=figures,
    )


def _neighbour_metrics(real: NDArray[Any], synthetic: NDArray[Any]) -> list[Metric]:
    """Return coverage, and distances to the nearest real row beside those among real rows."""
    if len(real) < _FEWEST_ROWS:
        return [Metric(name="coverage", value=f"not applicable: {len(real)} real rows")]
    reference, compared = neighbours.standardised(
        real, real[:NEIGHBOUR_ROWS], synthetic[:NEIGHBOUR_ROWS]
    )
    expected = neighbours.expected_coverage(len(reference), len(compared))
    distances = np.percentile(neighbours.nearest_distances(compared, reference), _PERCENTILES)
    among = np.percentile(neighbours.distances_within(reference), _PERCENTILES)
    return [
        Metric(
            name="coverage",
            value=neighbours.coverage(reference, compared),
            explanation=f"share of real rows with a synthetic row among their"
            f" {neighbours.COVERAGE_NEIGHBOURS} nearest; {expected:.3f} for a perfect sample",
        ),
        *(
            Metric(
                name=f"distance to the nearest real row, percentile {percentile}",
                value=float(distance),
                explanation=f"in standard deviations; {own:.3g} among the real rows themselves",
            )
            for percentile, distance, own in zip(_PERCENTILES, distances, among, strict=True)
        ),
    ]


def score_trajectories(
    store: DatasetStore,
    *,
    real: str,
    synthetic: str,
    public: str,
    config: "TrajectoryScoreConfig | None" = None,
) -> "TrajectoryScore | str":
    """Return the TrajScore, or in words why there is none.

    Args:
        store: datasets.
        real: id of the real trajectories.
        synthetic: id of the synthetic ones.
        public: id of the trajectories that the autoencoder is trained on.
        config: how.

    Raises:
        ConfigError: a dataset is missing, spaces differ, or windows are too few.
    """
    for dataset in (real, synthetic, public):
        if store.info(dataset).kind == "transitions":
            return f"not applicable: {dataset} holds independent transitions, no trajectories"
    from distributed_privrl.evaluation import trajectory_score as measure  # torch: for this alone

    config = config or measure.TrajectoryScoreConfig()
    info = store.info(public)
    layout = RowLayout(info.observation_space, info.action_space)
    windows = {
        dataset: measure.windows_of(store.read_trajectories(dataset), layout, config.window)
        for dataset in (public, real, synthetic)
    }
    for dataset in (real, synthetic):
        if len(windows[dataset]) < 4:
            return (
                f"not applicable: {dataset} has {len(windows[dataset])} windows of"
                f" {config.window} steps"
            )
    streams = Streams(0).child("trajectory score")
    encoder = measure.WindowEncoder(windows[public], config, streams)
    return measure.trajectory_score(
        encoder,
        windows[real],
        windows[synthetic],
        generator=streams.numpy("sample"),
        config=config,
    )


def trajectory_section(score: "TrajectoryScore | str", public: str) -> Section:
    """Return a section on the TrajScore; for private reports alone.

    Args:
        score: it, or why there is none.
        public: what the autoencoder was trained on.
    """
    if isinstance(score, str):
        metrics = [Metric(name="TrajScore", value=score)]
    else:
        metrics = [
            Metric(
                name="TrajScore",
                value=score.score,
                explanation=f"mean cosine of {score.windows} matched windows; 1: the same",
            ),
            Metric(
                name="TrajScore by chance",
                value=score.chance,
                explanation="other real windows with every column permuted; the largest of them"
                f" {score.chance_high:.3f}",
            ),
            Metric(
                name="TrajScore of real windows",
                value=score.ceiling,
                explanation="against other real windows: what a perfect model gets",
            ),
        ]
    return Section(
        title="TrajScore",
        explanation=f"Windows seen through an autoencoder trained on {public}.",
        metrics=metrics,
    )
