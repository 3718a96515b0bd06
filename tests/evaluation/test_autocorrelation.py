"""Autocorrelation: pairs inside trajectories alone, against numpy's."""

import numpy as np
import pytest
from gymnasium.spaces import Box

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.layout import RowLayout
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.evaluation.autocorrelation import autocorrelation
from distributed_privrl.evaluation.trajectory_plots import autocorrelations, maze_paths

SPACES = Box(-np.inf, np.inf, (2,), np.float32), Box(-1.0, 1.0, (1,), np.float32)


def waves(lengths: tuple[int, ...]) -> Trajectories:
    """Return trajectories whose first observation alternates and whose second is noise."""
    steps, count = sum(lengths), len(lengths)
    generator = np.random.default_rng(0)
    signs = np.concatenate([(-1.0) ** np.arange(length + 1) for length in lengths])
    return Trajectories(
        observations=np.stack([signs, generator.normal(size=steps + count)], axis=1),
        actions=generator.uniform(-1, 1, size=(steps, 1)),
        rewards=np.ones(steps),
        terminated=np.zeros(steps, dtype=bool),
        truncated=np.zeros(steps, dtype=bool),
        offsets=np.concatenate([[0], np.cumsum(lengths)]),
        unit_ids=np.arange(count),
    )


def test_columns_correlate_with_themselves_inside_a_trajectory() -> None:
    made, layout = waves((9, 30, 1, 50)), RowLayout(*SPACES)
    found = autocorrelation(made, layout, 60)
    assert found.shape == (60, 4)
    np.testing.assert_allclose(found[:8, 0], (-1.0) ** np.arange(1, 9), atol=1e-9)
    noise = [
        made.observations[made.offsets[k] + k :][:length, 1]
        for k, length in enumerate((9, 30, 1, 50))
    ]
    for lag in (1, 4):
        pairs = np.concatenate(
            [np.stack([x[:-lag], x[lag:]]) for x in noise if len(x) > lag], axis=1
        )
        assert found[lag - 1, 1] == pytest.approx(np.corrcoef(pairs)[0, 1], abs=1e-6)
    assert np.isnan(found[:, 3]).all()  # a reward that does not vary
    assert np.isnan(found[49:]).all()  # no trajectory is so long


def test_figures_of_trajectories_are_drawn() -> None:
    made, layout = waves((9, 30)), RowLayout(*SPACES)
    assert maze_paths({"synthetic": made}).startswith(b"\x89PNG")
    curves = {"a": autocorrelation(made, layout, 5), "b": autocorrelation(made, layout, 9)}
    names = layout.column_names[:4]
    assert b"<svg" in autocorrelations(curves, names)
    with pytest.raises(ConfigError, match="each of 3 columns"):
        autocorrelations(curves, names[:3])
    with pytest.raises(ConfigError, match="at least one dataset"):
        maze_paths({})
