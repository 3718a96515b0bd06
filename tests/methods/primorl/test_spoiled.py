"""A policy that noise spoiled, in a simulator that refuses what is not a number."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import StorageError
from distributed_privrl.data.spaces import environment_spaces
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.primorl.policy_training import CURVE
from distributed_privrl.privacy.verification import verify_certificate
from tests.docs.pages import ROOT
from tests.worlds.swings import DATASET, UNITS, Swings

BALANCE = "privrl/CartpoleBalance-v0"


def balance_world(folder: Path) -> Swings:
    """Write uniform numbers as if a cart-pole had been seen: its simulator refuses bad actions."""
    observations, actions, made = environment_spaces(BALANCE)
    made.close()
    length, generator, store = 20, np.random.default_rng(0), DatasetStore(folder / "master")
    steps = UNITS * length
    store.write_trajectories(
        DATASET,
        Trajectories(
            observations=generator.uniform(-1, 1, (steps + UNITS, 5)),
            actions=generator.uniform(-1, 1, (steps, 1)),
            rewards=generator.random(steps),
            terminated=np.zeros(steps, bool),
            truncated=np.zeros(steps, bool),
            offsets=np.arange(UNITS + 1) * length,
            unit_ids=np.arange(UNITS, dtype=np.uint64),
        ),
        observation_space=observations,
        action_space=actions,
        layout="packed",
    )
    world = Swings(folder / "world", store)
    bounds = ROOT / "tune_configs" / "bounds" / "cartpole.yaml"
    (world.folder / "bounds.yaml").write_text(bounds.read_text())
    return world


def test_a_policy_that_is_not_finite_ends_no_run_that_was_paid_for(tmp_path: Path) -> None:
    """No simulator is asked to step it: what it earns is not a number, in strict JSON null."""
    world = balance_world(tmp_path)
    spoiled = {"rule": "sgd", "learning_rate": 1e38, "ema_decay": 0.0}
    asked = {
        "data__environment": BALANCE,
        "training__optimiser": spoiled,
        "evaluation": {"episodes": 2, "every": 30, "horizon": 5},
    }

    def interrupt(name: str, done: int, *_: Any) -> None:
        if (name, done) == ("policy in the model", 50):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.run(key=None, progress=interrupt, **asked)
    result = world.run(key=None, resume=True, **asked)  # reads the curve back
    folder = result.directory.path
    assert verify_certificate(folder / "certificate.json").certificate.status == "valid"
    with pytest.raises(StorageError, match="not all finite"):  # as anybody else loads it
        Policy.load(folder / "policy.safetensors")
    policy = Policy.load(folder / "policy.safetensors", finite=False)
    assert np.isnan(policy.act(np.zeros((2, 5)))).all()
    curve = strictly(folder / "checkpoint" / CURVE)
    nothing = {"model_return": None, "returns": [None, None]}
    assert curve == [{"step": step, **nothing} for step in (30, 60)]
    assert strictly(folder / "evaluation.json")[0]["returns"] == [None, None]
    assert len(strictly(folder / "report.json")["sections"]) == 4


def strictly(path: Path) -> Any:
    """Read JSON that knows no NaN."""

    def refused(name: str) -> None:
        raise AssertionError(f"{path.name} holds {name}")

    return json.loads(path.read_text(), parse_constant=refused)
