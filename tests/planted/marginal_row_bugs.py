"""Bugs in how a run comes to the rows that it pre-trains on."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.marginals.program import MarginalsProgram
from distributed_privrl.methods.privorl.marginal_rows import (
    MARGINALS,
    MarginalRows,
    MarginalTrajectories,
)
from distributed_privrl.methods.privorl.method import PrivorlMethod
from distributed_privrl.methods.privorl.pretraining import KeptRows
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.stages import training


def exact_columns(patch: pytest.MonkeyPatch) -> None:
    """Noise is drawn for the columns, and their exact counts are kept."""
    right = MarginalsProgram._count_columns

    def count(self: MarginalsProgram, workers: Any, *arguments: Any, **keywords: Any) -> None:
        right(self, workers, *arguments, **keywords)
        assert self._noisy_columns is not None
        exact = np.asarray(np.sum(workers.call("columns"), axis=0, dtype=np.int64))
        self._noisy_columns = exact, self._noisy_columns[1]

    patch.setattr(MarginalsProgram, "_count_columns", count)


def half_the_noise(patch: pytest.MonkeyPatch) -> None:
    """Counts get half of the noise that is charged."""
    right = IntegerGaussianRelease.release

    def release(self: IntegerGaussianRelease, values: Any, source: Any, *, tag: int = 0) -> Any:
        less = replace(self, noise_multiplier=self.noise_multiplier / 2)
        return right(less, values, source, tag=tag)

    patch.setattr(IntegerGaussianRelease, "release", release)


def uncharged_marginals(patch: pytest.MonkeyPatch) -> None:
    """Marginals are part of the rounds' work, under no charge, with noise from nowhere."""
    stages, work, steps = PrivorlMethod.stages, PrivorlMethod.work, training.ReleaseServerSpec
    left_out: list[Any] = []

    def rounds_alone(self: PrivorlMethod, world: Any, units: Any) -> Any:
        first, *rest = stages(self, world, units)
        left_out.append(first)
        return rest

    def both(self: PrivorlMethod, stage: Any, world: Any, context: Any) -> Any:
        own = replace(context, run_id=f"{context.run_id}/{MARGINALS}")
        return work(self, stage, work(self, left_out[-1], world, own), context)

    def free(**settings: Any) -> Any:
        return steps(**{**settings, "ledger": None, "private": False})

    patch.setattr(PrivorlMethod, "stages", rounds_alone)
    patch.setattr(PrivorlMethod, "work", both)
    patch.setattr(training, "_check_charged", lambda *_: None)
    patch.setattr(training, "ReleaseServerSpec", free)


def delta_twice(patch: pytest.MonkeyPatch) -> None:
    """The rounds have all of delta, whatever the marginals cost."""
    right = MarginalRows.plan

    def plan(self: MarginalRows, *arguments: Any, **keywords: Any) -> Any:
        return right(self, *arguments, **keywords)[0], self.config.privacy

    patch.setattr(MarginalRows, "plan", plan)


def real_rows(patch: pytest.MonkeyPatch) -> None:
    """Some of the rows to pre-train on are sensitive ones."""
    right = MarginalRows.release

    def release(
        self: MarginalRows, columns: Any, encoder: str, context: Any, plan: Any
    ) -> KeptRows:
        kept = right(self, columns, encoder, context, plan)
        data = self.config.data
        real = context.store.read_transitions(data.sensitive, unit=data.unit).select(slice(0, 50))
        rows = TransitionEncoder.from_json(encoder).encode(real).rows
        kept.save(np.concatenate([rows, kept.read()]))
        return kept

    patch.setattr(MarginalRows, "release", release)


def exact_lengths(patch: pytest.MonkeyPatch) -> None:
    """Columns are noisy, and how long trajectories are is exact."""
    right = MarginalsProgram._count_columns

    def count(self: MarginalsProgram, workers: Any, *arguments: Any, **keywords: Any) -> None:
        right(self, workers, *arguments, **keywords)
        assert self._noisy_columns is not None
        noisy, deviation = self._noisy_columns
        exact = np.sum(workers.call("columns"), axis=0, dtype=np.int64)
        lengths = self._spec.columns.lengths
        assert lengths
        self._noisy_columns = np.concatenate([noisy[:-lengths], exact[-lengths:]]), deviation

    patch.setattr(MarginalsProgram, "_count_columns", count)


def real_beginnings(patch: pytest.MonkeyPatch) -> None:
    """Drawn trajectories begin where sensitive ones do."""
    right = MarginalTrajectories.encoded

    def release(self: MarginalRows, columns: Any, encoder: str, context: Any, plan: Any) -> Any:
        (real,) = context.store.iter_trajectories(self.config.data.sensitive, unit="trajectory")
        firsts.append(real.observations[real.offsets[:-1] + np.arange(len(real))])
        return kept(self, columns, encoder, context, plan)

    def encoded(self: MarginalTrajectories, model: Any, encoder: str, streams: Any) -> Any:
        rows = right(self, model, encoder, streams)
        fragments = FragmentEncoder.from_json(encoder)
        condition, steps, _ = fragments.split(rows)
        begins = np.flatnonzero((condition == 0).all(axis=1))
        block = fragments.transitions.layout.blocks["observation"]
        scaling = fragments.transitions.scaling
        real = (firsts[-1] - scaling.offset[block]) / scaling.scale[block]
        steps[begins, 0, block] = np.resize(real, (len(begins), real.shape[1]))
        return rows

    firsts: list[Any] = []
    kept = MarginalRows.release
    patch.setattr(MarginalRows, "release", release)
    patch.setattr(MarginalTrajectories, "encoded", encoded)
