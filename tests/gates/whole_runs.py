"""A gate on whole runs: what workers and server are built from, and do, is what is certified."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.privacy.calibration import SUM_SLACK
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.sampling import EMPTY
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import LocalUpdateWorker, WorkerSpec
from distributed_privrl.updates.local_update import LocalUpdate, UnitBatch
from tests.gates.bounds import assert_unit_variance, assert_z
from tests.gates.norms import TOLERANCE
from tests.gates.system import Observation, observed


@dataclass(frozen=True, kw_only=True)
class WholeRun:
    """A run of a method, not yet started.

    Args:
        config: of the run; its rounds have none of the model's own samples.
        ledger: where it is charged, and nothing else.
        start: runs it with real, unseeded randomness.
        stages: names of what is charged, the rounds last.
        units: how many there are.
        rows: whether every row of a unit takes part, and how many copies.
        outputs: folder of what is released, where it is not the run's.
    """

    config: Any
    ledger: Ledger
    start: Callable[[], RunResult]
    stages: Sequence[str]
    units: int
    rows: tuple[bool, int]
    outputs: Path | None = None


@dataclass
class Watch:
    """What a run's workers and server were built from, and what passed through them.

    Args:
        workers: of each worker.
        servers: of each server.
        units: that each worker holds.
        coins: nonce of a draw, units whose coins fell on one worker, vectors that it summed.
        norms: of single units' vectors, in each worker's first batch.
        sums: what each worker returned, round after round.
        draws: what the noise and the optimiser were given.
    """

    workers: list[WorkerSpec] = field(default_factory=list)
    servers: list[ServerSpec] = field(default_factory=list)
    units: list[NDArray[np.uint64]] = field(default_factory=list)
    coins: list[tuple[str, NDArray[np.uint64], int]] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    sums: list[NDArray[np.float64]] = field(default_factory=list)
    draws: Observation = field(default_factory=Observation)


@contextmanager
def watched(expected_units: float) -> Iterator[Watch]:
    """Watch the runs that are started meanwhile; ``expected_units`` is their denominator."""
    seen = Watch()
    start, batch = LocalUpdateWorker.__init__, LocalUpdateWorker._batch

    def started(self: LocalUpdateWorker, spec: WorkerSpec) -> None:
        start(self, spec)
        seen.workers.append(spec)
        seen.units.append(self._shard.unit_ids)
        self._update = _SeenUpdate(self._update, seen)

    def batched(self: LocalUpdateWorker, included: Any, nonce: str, blocks: Any) -> UnitBatch:
        units = batch(self, included, nonce, blocks)
        there = included[included != EMPTY]
        seen.coins.append((nonce, self._shard.unit_ids[there], len(units) - sum(included == EMPTY)))
        return units

    # Both patch the server: what came last has to go first, or the spies stay.
    with observed(expected_units) as seen.draws, pytest.MonkeyPatch.context() as patch:
        serve = ParameterServer.__init__

        def served(self: ParameterServer, spec: ServerSpec) -> None:
            seen.servers.append(spec)
            serve(self, spec)

        patch.setattr(LocalUpdateWorker, "__init__", started)
        patch.setattr(LocalUpdateWorker, "_batch", batched)
        patch.setattr(ParameterServer, "__init__", served)
        yield seen


class _SeenUpdate:
    """A worker's local update; each unit of its first batch is computed alone, too."""

    def __init__(self, update: LocalUpdate, seen: Watch) -> None:
        self._update, self._seen, self._alone = update, seen, True
        self.dimension = update.dimension

    def clipped_sum(self, parameters: NDArray[Any], batch: UnitBatch) -> NDArray[Any]:
        alone = np.zeros(self.dimension)
        for unit in range(len(batch) * self._alone):
            part = batch.part(unit, unit + 1)
            vector = self._update.clipped_sum(parameters, part).astype(np.float64)
            self._seen.norms.append(float(np.linalg.norm(vector)))
            alone += vector
        total = self._update.clipped_sum(parameters, batch)
        if self._alone and len(batch):
            np.testing.assert_allclose(
                total, alone, rtol=1e-3, atol=1e-4 * np.abs(alone).max(), err_msg="a sum of units"
            )
            self._alone = False
        self._seen.sums.append(np.array(total, np.float64))
        return total


def gate_whole_run(run: WholeRun) -> None:
    """What is charged is what is certified, and what the rounds are built from and do."""
    with watched(run.config.training.expected_batch_size) as seen:
        result = run.start()
    try:
        checked = verify_certificate(
            result.directory.certificate, ledger=run.ledger, outputs_root=run.outputs
        )
    except VerificationError as error:
        raise AssertionError(f"the certificate does not verify: {error}") from error
    certificate = checked.certificate
    names = [stage.name for stage in certificate.stages]
    assert names == list(run.stages), f"what was charged is certified as {names}"
    charged = {entry.id: entry for entry in run.ledger.entries()}
    listed = certificate.ledger_entries
    assert set(listed) == set(charged), f"of {sorted(charged)}, {sorted(listed)} are certified"
    stated, spent = certificate.epsilon or 0.0, sum(entry.epsilon for entry in charged.values())
    assert abs(stated - spent) < 1e-3 * spent, f"epsilon {spent} is certified as {stated}"
    units = {(stage.unit, stage.units) for stage in certificate.stages}
    assert units == {(run.config.data.unit, run.units)}, f"the certificate's units are {units}"
    stage, entry = certificate.stages[-1], charged[result.directory.run_id]
    assert_built_as_certified(run.config, stage, seen.workers, seen.servers, rows=run.rows)
    first = entry.event.get("trajectories", [0])[0]
    for spec in seen.workers:
        skipped = spec.source.ref.skip_trajectories  # type: ignore[attr-defined]
        assert skipped == first, f"trajectories from {skipped} on are read, from {first} charged"
    assert_drawn_as_certified(stage, seen)
    assert_taken_as_certified(stage, seen)
    counts = (entry.reserved_rounds, entry.drawn_rounds, run.config.training.rounds)
    assert set(counts) == {stage.events[0].count}, f"reserved, drawn, planned: {counts}"


def assert_built_as_certified(
    config: Any,
    stage: Stage,
    workers: Sequence[WorkerSpec],
    servers: Sequence[ServerSpec],
    *,
    rows: tuple[bool, int],
) -> None:
    """Fail if rounds are built from what their stage does not state or the run does not ask for."""
    (event,), batch = stage.events, config.training.expected_batch_size
    assert len(workers) == config.runtime.workers, "another number of workers"
    for spec in workers:
        update: Any = spec.local_update
        assert update.clip_norm == stage.clip_norm, f"workers clip at {update.clip_norm}"
        coins = spec.sampling_probability
        assert coins == event.sampling_probability, f"coins are thrown at {coins}"
        source: Any = spec.source
        ref = source.ref
        assert ref.unit == stage.unit == config.data.unit, f"units are cut by {ref.unit}"
        assert ref.dataset == stage.dataset == config.data.sensitive, "another dataset"
        longest = ref.max_rows_per_unit
        assert longest == config.data.max_length, f"units are cut after {longest} rows"
        assert (spec.all_rows, spec.copies) == rows, "other rows take part"
    (server,) = servers
    assert server.mechanism is not None, "no noise is drawn"
    assert server.mechanism.event(event.count) == event, "another noise is drawn than is stated"
    assert server.mechanism.clip_norm == stage.clip_norm, "noise is made for another norm"
    assert server.expected_units == batch, "another denominator"
    assert event.sampling_probability * stage.units == pytest.approx(batch), "another batch size"
    assert server.ledger is not None, "nothing is charged"


def assert_drawn_as_certified(stage: Stage, seen: Watch) -> None:
    """Fail if the noise of the rounds is not what their stage states, or joins another sum."""
    (event,), draws = stage.events, seen.draws
    made = len(draws.sums)
    assert made == event.count, f"{event.count} rounds are certified, {made} draws were made"
    assert len(draws.steps) == event.count, f"{event.count} rounds made {len(draws.steps)} steps"
    given, noisy = np.stack(draws.sums), np.stack(draws.noisy)
    assert stage.clip_norm is not None
    deviation = event.noise_multiplier * stage.clip_norm
    noise = (noisy - given) / deviation
    assert_unit_variance(noise, "noise of the rounds", spare=SUM_SLACK)
    sums = np.stack(seen.sums).reshape(event.count, len(seen.workers), -1).sum(axis=1)
    for what, one, other in (
        ("the workers' sums get the noise", given, sums),
        ("the noisy sum is divided by the public denominator", np.stack(draws.steps), noisy),
    ):
        off = float(np.abs(one - other).max() / np.abs(other).max())
        assert off < 1e-4, f"{what}: off by {off:.2g}"


def assert_taken_as_certified(stage: Stage, seen: Watch) -> None:
    """Fail if units take part more often than their coins say, twice, or with more than C."""
    (event,), held = stage.events, np.concatenate(seen.units)
    assert len(np.unique(held)) == len(held), "a unit lies in the shards of two workers"
    assert len(held) == stage.units, f"{stage.units} units are certified, workers hold {len(held)}"
    nonces = {nonce for nonce, _, _ in seen.coins}
    assert len(nonces) == event.count, f"{event.count} draws of noise had {len(nonces)} nonces"
    for nonce in nonces:
        drawn = [(units, vectors) for other, units, vectors in seen.coins if other == nonce]
        different = len(np.unique(np.concatenate([units for units, _ in drawn])))
        vectors = sum(vectors for _, vectors in drawn)
        assert vectors == different, f"{different} units added {vectors} vectors to a round"
    tosses, q = event.count * stage.units, event.sampling_probability
    heads = sum(len(units) for _, units, _ in seen.coins)
    assert_z((heads - q * tosses) / np.sqrt(tosses * q * (1 - q)), "units that took part")
    assert stage.clip_norm is not None
    largest = max(seen.norms) / stage.clip_norm
    assert largest < 1 + TOLERANCE, f"a unit's vector has norm {largest:.3f} C"
    assert largest > 0.99, f"no unit is clipped, the largest has {largest:.3f} C: lower C"
