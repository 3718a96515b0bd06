"""Mistakes by which a run of `policy_value` would let out what is exact, or whose it is."""

import json
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.methods.policy_value import agent, method, program
from distributed_privrl.methods.policy_value.method import PolicyValueMethod
from distributed_privrl.methods.policy_value.program import SumProgram, SumWorker
from distributed_privrl.privacy.mechanisms import DiscreteLaplaceRelease
from tests.worlds.rarities import DATASET

Plant = Callable[[pytest.MonkeyPatch], None]


def _watch_the_sums(patch: pytest.MonkeyPatch) -> list[Any]:
    """Return a list that gets what the noise is added to."""
    right, exact = DiscreteLaplaceRelease.release, []

    def release(self: DiscreteLaplaceRelease, values: Any, *rest: Any, **named: Any) -> Any:
        exact.append(values.copy())
        return right(self, values, *rest, **named)

    patch.setattr(DiscreteLaplaceRelease, "release", release)
    return exact


def mean_without_noise(patch: pytest.MonkeyPatch) -> None:
    """The figures are of the sums before their noise; their errors are of the noisy ones."""
    exact, right = _watch_the_sums(patch), method.value_of

    def value_of(sums: Any, **facts: Any) -> Any:
        true = right(exact[0].astype(np.float64), **facts)
        return replace(right(sums, **facts), policy=true.policy, acted=true.acted)

    patch.setattr(method, "value_of", value_of)


def sums_without_noise_are_kept(patch: pytest.MonkeyPatch) -> None:
    """The checkpoint has the sums before their noise, beside those with it."""
    exact, right = _watch_the_sums(patch), SumProgram.tensors

    def tensors(self: SumProgram) -> Any:
        return right(self) | {"before": torch.from_numpy(exact[0])}

    patch.setattr(SumProgram, "tensors", tensors)


def number_of_rows_is_told(patch: pytest.MonkeyPatch) -> None:
    """The figures say of how many days they are."""
    counted: list[int] = []
    proper, finish = program.proper_trajectories, PolicyValueMethod.finish

    def kept(*given: Any) -> Any:
        found = proper(*given)
        counted.append(len(found.rewards))
        return found

    def finished(self: PolicyValueMethod, *given: Any) -> Any:
        released = finish(self, *given)
        right = released.release.save

        def save(path: Path) -> None:
            right(path)
            path.write_text(json.dumps(json.loads(path.read_text()) | {"days": sum(counted)}))

        return replace(released, release=replace(released.release, save=save))

    patch.setattr(program, "proper_trajectories", kept)
    patch.setattr(PolicyValueMethod, "finish", finished)


def agent_of_real_rows(patch: pytest.MonkeyPatch) -> None:
    """The agent learns from the very rows that it is judged on."""
    right = agent.proper_transitions
    patch.setattr(agent, "proper_transitions", lambda store, _: right(store, DATASET))


def numbers_of_units_are_sent(patch: pytest.MonkeyPatch) -> None:
    """Workers are told what one of them answered, as if it were a centre for all."""
    right, answer = SumProgram.step, SumWorker.sums

    def step(self: SumProgram, index: int, workers: Any, *rest: Any, **named: Any) -> None:
        workers.call("sums", {"centre": workers.call("sums")[0]})
        right(self, index, workers, *rest, **named)

    patch.setattr(SumWorker, "sums", lambda self, centre=None: answer(self))
    patch.setattr(SumProgram, "step", step)


def values_of_units_are_logged(patch: pytest.MonkeyPatch) -> None:
    """Whoever reads the log learns what each patient's days were worth."""
    right = program.unit_integers

    def integers(figures: Any, *given: Any) -> Any:
        logging.getLogger("distributed_privrl.methods").info("value %.3f", figures.value)
        return right(figures, *given)

    patch.setattr(program, "unit_integers", integers)
