"""Rows that stand in lie within declared bounds, and go together as strongly as their page says."""

from pathlib import Path

import numpy as np
from scipy.stats import spearmanr

from distributed_privrl.core.config import DataConfig
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.standin import STRENGTHS, Lengths, StandIn
from distributed_privrl.marginals.step_tables import step_columns
from distributed_privrl.stages.encoders import foreseen_columns

HIGH = [100.0, 10.0, 50.0, 9.0]


def test_numbers_that_a_bounds_file_alone_tells_fill_their_bounds(tmp_path: Path) -> None:
    """Without the dataset nothing else limits them: a space of 0 to 1 cut all of them off."""
    bounds = tmp_path / "bounds.yaml"
    bounds.write_text(
        f"observation: {{low: [0, 0, 0, 0], high: {HIGH}, step: [1, 0, 0, 1]}}\n"
        "action: {low: [0], high: [4], step: [1]}\nreward: [0, 1]\n"
    )
    data = DataConfig(
        sensitive="clinic/none-v0", unit="transition", units=4000, bounds=bounds, max_length=None
    )
    known = foreseen_columns(data, DatasetStore(tmp_path / "none"))
    assert known is not None
    columns = step_columns(
        known.observation_space,
        known.action_space,
        known.bounds,
        next_observation="absolute",
        ends=2,
    )
    made = StandIn(columns=columns, units=4000, lengths=Lengths(least=1, most=1), wide=False)
    (rows,) = made.transitions(np.random.default_rng(0))
    assert (rows.observations.min(axis=0) < [2, 0.2, 1, 1]).all()
    assert (rows.observations.max(axis=0) > 0.97 * np.array(HIGH)).all()
    measured = spearmanr(np.concatenate([rows.observations, rows.actions], axis=1)).statistic
    neighbours = [measured[place, place + 1] for place in range(3)]
    np.testing.assert_allclose(neighbours, STRENGTHS, atol=0.06)
    assert 0.4 < measured[0, 4] < 0.6
