from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.environments import maze_layout
from distributed_privrl.evaluation.embedding import embed
from distributed_privrl.evaluation.plots import (
    ImageFormat,
    colours_of,
    column_histograms,
    embedded_points,
    learning_curves,
    lines_with_spread,
    maze_positions,
    pair_differences,
    roc_curves,
    value_map,
)
from distributed_privrl.evaluation.returns import LearningCurve, Returns
from distributed_privrl.evaluation.roc import roc_curve

ROWS = np.random.default_rng(0).normal(size=(300, 5))
NAMES = ("x", "y", "vx", "vy", "reward")


def curve(*means: float) -> LearningCurve:
    steps = tuple(range(1, len(means) + 1))
    return LearningCurve(steps=steps, returns=tuple(Returns((mean,)) for mean in means))


def histograms(image_format: ImageFormat) -> bytes:
    data = {"synthetic": ROWS, "public": ROWS + 1}
    return column_histograms(data, NAMES, image_format=image_format)


def positions(image_format: ImageFormat) -> bytes:
    layout = maze_layout("privrl/Maze2D-umaze-v0")
    return maze_positions({"synthetic": ROWS[:, :2]}, layout, image_format=image_format)


def curves(image_format: ImageFormat) -> bytes:
    groups = {"iql": [curve(1, 2), curve(3, 4)], "bc": [curve(0, 1)]}
    return learning_curves(groups, image_format=image_format)


def correlation(image_format: ImageFormat) -> bytes:
    return pair_differences(np.corrcoef(ROWS.T) - 0.5, NAMES, image_format=image_format)


def values(image_format: ImageFormat) -> bytes:
    return value_map(ROWS, image_format=image_format)


def lines(image_format: ImageFormat) -> bytes:
    found = {"epsilon 1": {100: [0.5, 0.6], 1000: [0.2, 0.3]}, "no privacy": {100: [0.1]}}
    levels = {"random": 0.9}
    return lines_with_spread(
        found, xlabel="units", ylabel="gap", levels=levels, image_format=image_format
    )


def plane(image_format: ImageFormat) -> bytes:
    return embedded_points(embed({"real": ROWS, "synthetic": ROWS + 1}), image_format=image_format)


def rocs(image_format: ImageFormat) -> bytes:
    curve = roc_curve(ROWS[:, 0] + 1, ROWS[:, 1])
    return roc_curves({"mean loss": curve}, image_format=image_format)


@pytest.mark.parametrize(
    "plot", [histograms, positions, curves, correlation, values, lines, plane, rocs]
)
def test_figures_are_whole_files_that_repeat(plot: Callable[[ImageFormat], bytes]) -> None:
    image = plot("svg")
    assert ElementTree.fromstring(image).tag.endswith("svg")
    assert image == plot("svg")
    assert plot("png").startswith(b"\x89PNG\r\n")


def test_a_figure_shows_its_data() -> None:
    layout = maze_layout("privrl/Maze2D-umaze-v0")
    inside = maze_positions({"synthetic": ROWS[:, :2]}, layout)
    assert inside != maze_positions({"synthetic": ROWS[:, :2] / 2}, layout)
    assert inside != maze_positions({"synthetic": ROWS[:, :2]})


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ConfigError, match="synthetic must have 4 columns"):
        column_histograms({"synthetic": ROWS}, NAMES[:4])
    with pytest.raises(ConfigError, match="real must have 2 columns"):
        maze_positions({"real": ROWS})
    with pytest.raises(ConfigError, match="differences must be 5 x 5"):
        pair_differences(np.zeros((5, 4)), NAMES)
    with pytest.raises(ConfigError, match="share their steps"):
        learning_curves({"iql": [curve(1, 2), curve(1)]})
    with pytest.raises(ConfigError, match="share their steps"):
        learning_curves({"iql": []})
    with pytest.raises(ConfigError, match=r"must be \(T, S\)"):
        value_map(np.zeros(3))


def test_a_value_map_is_pale_where_nothing_is_sure() -> None:
    table = np.ones((3, 4))
    plain = value_map(table)
    assert value_map(table, sure=np.ones((3, 4), np.bool_)) != value_map(
        table, sure=np.eye(3, 4) > 0
    )
    assert b"value" in plain  # the colour bar's label is drawn
    with pytest.raises(ConfigError, match=r"sure must be \(3, 4\)"):
        value_map(table, sure=np.ones((4, 3), np.bool_))


@pytest.mark.parametrize(
    "plot",
    [
        lambda: column_histograms({}, NAMES),
        lambda: maze_positions({}),
        lambda: learning_curves({}),
        lambda: roc_curves({}),
        lambda: lines_with_spread({}, xlabel="x", ylabel="y"),
        lambda: lines_with_spread({"one": {}}, xlabel="x", ylabel="y"),
    ],
)
def test_nothing_to_plot_is_an_error(plot: Callable[[], bytes]) -> None:
    with pytest.raises(ConfigError, match="at least one"):
        plot()


def test_a_category_has_one_panel_however_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*(f"observation_is_{i}" for i in range(716)), "reward", "action_is_0", "action_is_1"]
    made: list[tuple[int, int]] = []
    right = Figure.subplots

    def subplots(self: Figure, *shape: int, **settings: Any) -> Any:
        made.append(shape)  # type: ignore[arg-type]
        return right(self, *shape, **settings)

    monkeypatch.setattr(Figure, "subplots", subplots)
    rows = np.zeros((30, len(names)))
    rows[np.arange(30), np.arange(30)] = 1
    image = column_histograms({"real": rows}, names)
    assert made == [(1, 3)]
    assert all(name in image for name in (b"observation", b"reward", b"action"))
    assert b"observation_is_5" not in image
    shown: list[int] = []
    ticks = Axes.set_xticks

    def set_xticks(self: Axes, places: Any, *labels: Any, **settings: Any) -> Any:
        shown.append(len(places))
        return ticks(self, places, *labels, **settings)

    monkeypatch.setattr(Axes, "set_xticks", set_xticks)
    pair_differences(np.zeros((len(names), len(names))), names)
    assert 0 < shown[0] <= 60


def test_few_values_have_a_bar_with_their_name_each() -> None:
    names = ["ward is ICU", "ward is surgery", "age"]
    rows = np.array([[1, 0, 30.0], [0, 1, 40.0], [0, 1, np.nan]])
    image = column_histograms({"real": rows, "synthetic": rows[:1]}, names)
    assert all(name in image for name in (b"ward", b"ICU", b"surgery", b"age"))


def test_a_column_without_any_number_has_an_empty_panel() -> None:
    rows = np.array([[np.nan, 1.0], [np.inf, 2.0]])
    image = column_histograms({"real": rows}, ["void", "there"])
    assert b"void" in image


def test_real_and_synthetic_rows_have_their_colours_in_every_figure() -> None:
    real, synthetic = colours_of(["real", "synthetic"])
    assert real != synthetic
    assert colours_of(["synthetic", "public-v0"])[0] == synthetic
    assert len({real, *colours_of(["synthetic", "one", "two", "three"])}) == 5
    assert colours_of(["iql"]) == [real], "where neither is shown, the first colour is free"
    assert len(colours_of([str(number) for number in range(20)])) == 20
