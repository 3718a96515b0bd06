"""A gate on whole runs of value iteration: nothing exact leaves, and nothing of who stands out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from distributed_privrl.privacy.noise import SecureNoise
from tests.gates.leak_runs import Finished, watched_run
from tests.gates.leaks import scan
from tests.worlds.finite_rarities import HORIZON, STATES, FiniteRarities

DIGITS = 3
"""A number that this many decimals write is met by chance."""


def finite_run(folder: Path, method: str) -> Finished:
    """Run a method on the stays, watched; what it would learn without noise is a secret, too."""
    for name in ("real", "without noise"):
        (folder / name).mkdir()
    world = FiniteRarities(folder / "real", method)
    secrets = world.secrets()
    exact = policy_without_noise(folder / "without noise", method)
    secrets.learned.append(exact.values)
    if exact.penalties is not None:
        secrets.learned.append(exact.penalties)
    expected = {
        f"the exact value of state {state}": float(value)
        for state, value in enumerate(exact.values[0])
        if round(value, DIGITS) != value
    }
    assert len(expected) > STATES // 2
    secrets = replace(secrets, planted={**secrets.planted, **expected})
    return watched_run(world, world.config(), secrets)


def policy_without_noise(folder: Path, method: str) -> GreedyPolicy:
    """Return what the same run learns from the same exact sums, as if noise were nought."""

    def nothing_added(_: Any, values: NDArray[np.int64], **__: Any) -> NDArray[np.int64]:
        return values

    world = FiniteRarities(folder, method)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureNoise, "add_discrete_gaussian", nothing_added)
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        config = world.config()
        directory: RunDirectory = world.afford(config).start(config).directory
    return GreedyPolicy.load(directory.path / config.output.files[0])


def with_values(path: Path, values: NDArray[np.float64]) -> None:
    """Write a file of tensors again, with other values."""
    with safe_open(path, framework="np") as file:
        said = file.metadata()
    save_file({**load_file(path), "values": values}, path, metadata=said)


def gate_nothing_leaves(run: Finished) -> None:
    """No file outside ``private/``, no argument and no word holds a secret."""
    secrets, workers = run.secrets, run.config.runtime.workers
    sums = {"apvi": 2 * workers + 2, "vapvi": 5 * workers}  # of a time step
    assert len(secrets.counts) >= HORIZON * sums[run.config.method], "sums were not watched"
    assert len(secrets.learned_words) > 100, "nothing was learned"
    assert len(run.sent) > HORIZON, "nothing was sent"
    scan(run.folder, secrets, said=run.said, sent=run.sent)
