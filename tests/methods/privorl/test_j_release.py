"""What PrivORL-j releases: whole trajectories in raw units, of numbers and of categories."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from distributed_privrl.collection.recipes import collect
from distributed_privrl.data.metadata import SEAM_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments.registry import parse_config
from tests.worlds.opened import opened
from tests.worlds.walks import config_values, walk_store
from tests.worlds.world import World

METHODS = ["privorl_j", "privorl_j_unet", "privorl_ar_j", "dp_transformer"]
TOKENS = {"privorl_ar_j", "dp_transformer"}
"""They are drawn one after the other, not in steps of a sampler."""
MODELS = {
    "privorl_j": {"width": 16, "depth": 1, "heads": 2, "horizon": 8},
    "privorl_j_unet": {"width": 8, "depth": 2, "horizon": 8},
    "privorl_ar_j": {"bins": 8, "hidden": [8], "horizon": 8},
    "dp_transformer": {"bins": 8, "width": 8, "depth": 1, "heads": 2, "horizon": 8},
}
GRID, RELEASED = "test/grid-v0", "test/private-v0"
LONGEST = 20


def released(folder: Path, store: DatasetStore, method: str, **sections: Any) -> Trajectories:
    """Run ``method`` and return what it releases."""
    values = config_values(method=method, **{"model": MODELS[method], **sections})
    values["output"] = {"dataset": RELEASED, "size": 60}
    sampling = {"chunk_trajectories": 25} | ({} if method in TOKENS else {"steps": 5})
    values["training"] = values["training"] | {"sampling": sampling}
    settings = parse_config(values, source="test")
    World(folder).afford(settings).start(settings)
    return store.read_trajectories(RELEASED)


def assert_whole(made: Trajectories, *, longest: int) -> None:
    """Fail unless steps follow each other and stop at an end, after different times."""
    ends = made.terminated | made.truncated
    assert np.flatnonzero(ends).tolist() == (made.offsets[1:] - 1).tolist(), "a step after an end"
    assert not (made.terminated & made.truncated).any()
    assert 1 <= made.lengths.min() < made.lengths.max() <= longest, "lengths do not vary"
    steps = made.transitions("trajectory")
    inner = np.flatnonzero(~ends)
    followed = steps.next_observations[inner] == steps.observations[inner + 1]
    assert followed.all(), "s' of a step is not s of the next"


@pytest.fixture(autouse=True)
def without_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )


@pytest.mark.parametrize("method", METHODS)
def test_categories_come_out_as_they_went_in(method: str, tmp_path: Path) -> None:
    store, bounds = DatasetStore(tmp_path / "datasets"), tmp_path / "bounds.yaml"
    bounds.write_text("reward: [0, 1]\n")
    collect(
        "gridworld", dataset=GRID, store=store, steps=None, seed=1, options={"trajectories": 200}
    )
    data = {"sensitive": GRID, "unit": "trajectory", "units": 200, "max_length": LONGEST}
    training = config_values()["training"] | {
        "rounds": 30,
        "expected_batch_size": 100,
        "pretraining": {"steps": 0},
    }
    made = released(
        tmp_path,
        store,
        method,
        data=data | {"bounds": str(bounds)},
        model=MODELS[method] | {"reward_levels": [0.0, 1.0]},
        training=training,
        runtime={"workers": 1, "executor": "local", "blocks": 1, "micro_batch_rows": 1024},
    )
    assert_whole(made, longest=LONGEST)
    real, info = store.info(GRID), store.info(RELEASED)
    assert (info.kind, opened(info.total_trajectories)) == ("trajectories", 60)
    for space, values in (
        (info.observation_space, made.observations),
        (info.action_space, made.actions),
    ):
        assert isinstance(space, Discrete)
        assert (values.dtype, values.ndim) == (np.int64, 1)
        assert values.min() >= space.start
        assert values.max() < space.start + space.n
    assert (info.observation_space, info.action_space) == (
        real.observation_space,
        real.action_space,
    )
    assert set(np.unique(made.rewards)) <= set(np.unique(store.read_trajectories(GRID).rewards))
    assert len(np.unique(made.observations)) > 3
    assert len(np.unique(made.actions)) > 1
    seams = opened(info.metadata)[SEAM_KEY]
    assert 0 <= seams["inside"] <= 1, "the share of steps whose categories differ"


@pytest.mark.parametrize("method", METHODS)
def test_steps_of_numbers_follow_each_other_until_an_end(method: str, tmp_path: Path) -> None:
    made = released(tmp_path, walk_store(tmp_path / "datasets"), method)
    assert_whole(made, longest=24)
    assert made.observations.dtype == np.float32
    assert np.abs(made.observations).max() <= 2
    assert np.abs(made.actions).max() <= 1
    assert set(np.unique(made.rewards)) <= {0.0, 1.0}
