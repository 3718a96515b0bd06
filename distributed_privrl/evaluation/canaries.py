"""The one-round canary audit: what the assembled mechanism gives away, measured from outside.

Canaries are units made up for the audit, whose clipped vectors are orthogonal; no real row is read
and no account is charged.
"""

import math
import os
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats

from distributed_privrl.core.checks import check_positive
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor, LocalExecutor, WorkerGroup
from distributed_privrl.core.files import unfinished_folder
from distributed_privrl.evaluation.canary_rows import (
    BLOCKS,
    FAN_IN,
    WORKERS,
    CanaryShard,
    CanaryUpdate,
)
from distributed_privrl.evaluation.membership import Estimate, exact_interval
from distributed_privrl.evaluation.one_run import Guesses, guessed
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.events import charged_rounds
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.sampling import SECRET_BYTES, RoundSecret
from distributed_privrl.privacy.units import TRANSITION, PrivacyBudget
from distributed_privrl.rounds.checkpoint import CheckpointState, load_checkpoint, save_checkpoint
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.server import ParameterServer, ServerSpec, draw_nonce
from distributed_privrl.rounds.summing import start_workers
from distributed_privrl.rounds.worker import (
    SecretOfRun,
    SecretSource,
    WorkerSpec,
)
from distributed_privrl.stages.context import RunContext

CANARIES = 20_000
ROWS_OF_A_UNIT = 3
CONFIDENCE = 0.95
_LEAST_CANARIES = 100
_CANARIES_A_GUESS = 10
_HALF = 0.5
_LARGE = 1000.0  # times the clip norm: the gradient of a canary before it is clipped
_RUN = "run-canaries"
_DATASET = "audit/canaries-v0"
_FINGERPRINT = "0" * 64


@dataclass(frozen=True, kw_only=True)
class CanaryRound:
    """What one round of the real mechanism showed.

    Args:
        canaries: how many there were.
        participants: how many took part, each by a coin of 1/2.
        mu: the Gaussian mechanism's mu = sensitivity / standard deviation, as measured; ``chance``
            is what was charged, 1 / noise multiplier.
        sampled: share of the canaries that took part in another round, at the configured sampling
            probability; ``chance`` is that probability.
        noise_source: name of what noise and coins were drawn from.
        rows: that a canary has at most.
        guesses: who took part, guessed from the released sum.
    """

    canaries: int
    participants: int
    guesses: Guesses
    mu: Estimate
    sampled: Estimate
    noise_source: str
    rows: int = 1

    @property
    def charged_mu(self) -> float:
        """Mu of the event in the ledger."""
        return self.mu.chance


def canary_round(
    mechanism: PrivateRound,
    *,
    canaries: int = CANARIES,
    rows: int = 1,
    executor: Executor | None = None,
    work: Path | None = None,
    insecure_key: int | None = None,
) -> CanaryRound:
    """Run one round over canaries through real workers, server, ledger and noise, and measure it.

    The workers are more than answer the server themselves: their sums are added up on the way, as
    in a run with more than ``runtime.fan_in`` workers.

    Canary i moves coordinate i alone, by the clip norm. Each takes part with probability 1/2, where
    the estimate is sharpest: the released sum has about half its coordinates around the clip norm
    and half around zero, mu is the distance of the two means in standard deviations. The noise does
    not depend on the sampling probability; whether coins fall with the configured one is measured
    in a second round, before its noise.

    Args:
        mechanism: the calibrated round.
        canaries: how many, a hundred at least.
        rows: that a canary has at most; above one, canary i has 1 + i mod ``rows`` of them, and
            workers take them all, as they take a trajectory's fragments.
        executor: where workers, sums on the way and server run (default: this process); it stays
            open.
        work: where the round's temporary folder is made, in reach of all of them (default: the
            system's).
        insecure_key: seeded noise and coins, for tests.

    Raises:
        ConfigError: too few canaries.

    Privacy: reads no real row; the ledger is a new one in a temporary folder, and nothing is
    charged elsewhere. Who took part is asked of the workers afterwards, under the nonce of the
    round's draw: canaries are nobody's.

    Reference: Andrew et al., "One-shot empirical privacy estimation for federated learning" (2023);
    Dong, Roth, Su, "Gaussian differential privacy" (2019), for mu.
    """
    check_positive("canaries", canaries)
    if canaries < _LEAST_CANARIES:
        raise ConfigError(f"canaries must be at least {_LEAST_CANARIES}, got {canaries}")
    executor = executor or LocalExecutor()
    with unfinished_folder(work or Path(tempfile.gettempdir())) as folder:
        observed = _Round(
            mechanism=replace(mechanism, sampling_probability=_HALF),
            canaries=canaries,
            rows=rows,
            folder=folder,
            executor=executor,
            insecure_key=insecure_key,
        )
        inside, released, charged_mu = observed.run()
    taken = int(_participants(mechanism, canaries, insecure_key, rows, executor).sum())
    low, high = exact_interval(taken, canaries, CONFIDENCE)
    return CanaryRound(
        canaries=canaries,
        participants=int(inside.sum()),
        guesses=guessed(released, inside, made=canaries // _CANARIES_A_GUESS),
        mu=measured_mu(released, inside, charged=charged_mu),
        sampled=Estimate(
            value=taken / canaries, low=low, high=high, chance=mechanism.sampling_probability
        ),
        noise_source=RunContext.noise_class(insecure_key).name,
        rows=rows,
    )


def measured_mu(
    released: NDArray[np.float64], inside: NDArray[np.bool_], *, charged: float
) -> Estimate:
    """Return mu from the released coordinates of canaries that took part and that did not.

    The error of a ratio of a difference of means and a deviation, to first order.

    Args:
        released: (N,) the noisy sum.
        inside: (N,) whether canary i took part.
        charged: mu as charged.

    Raises:
        ConfigError: fewer than two canaries took part, or did not.

    Example:
        >>> released = np.array([3.0, 5.0, -1.0, 1.0])
        >>> inside = np.array([True, True, False, False])
        >>> round(measured_mu(released, inside, charged=1.0).value, 3)  # 4 / sqrt(2)
        2.828
    """
    sizes = int(inside.sum()), int((~inside).sum())
    if min(sizes) < 2:
        raise ConfigError(f"{sizes[0]} canaries took part and {sizes[1]} did not: take more")
    means = released[inside].mean(), released[~inside].mean()
    degrees = len(released) - 2
    residuals = released - np.where(inside, *means)
    mu = float((means[0] - means[1]) / math.sqrt(residuals @ residuals / degrees))
    error = math.sqrt(1 / sizes[0] + 1 / sizes[1] + mu**2 / (2 * degrees))
    reach = float(stats.norm.isf((1 - CONFIDENCE) / 2)) * error
    return Estimate(value=mu, low=mu - reach, high=mu + reach, chance=charged)


def _worker_specs(
    mechanism: PrivateRound, canaries: int, secret: SecretSource, rows: int
) -> list[WorkerSpec]:
    return [
        WorkerSpec(
            source=CanaryShard(
                canaries=canaries, size=_LARGE * mechanism.clip_norm, most=rows
            ),
            local_update=CanaryUpdate(canaries=canaries, clip_norm=mechanism.clip_norm),
            sampling_probability=mechanism.sampling_probability,
            secret=secret,
            index=index,
            workers=WORKERS,
            blocks=BLOCKS,
            all_rows=rows > 1,
            most_rows=rows,
        )
        for index in range(WORKERS)
    ]  # fmt: skip


def _participants(
    mechanism: PrivateRound,
    canaries: int,
    insecure_key: int | None,
    rows: int,
    executor: Executor,
) -> NDArray[np.bool_]:
    """Return which canaries took part in a round at the mechanism's own sampling probability."""
    random = os.urandom(SECRET_BYTES)  # of a round that is charged to nobody
    secret = (
        (lambda: RoundSecret(random))
        if insecure_key is None
        else SecretOfRun(run_id=_RUN, insecure_key=insecure_key)
    )
    specs = _worker_specs(mechanism, canaries, secret, rows)
    workers = start_workers(executor, specs, fan_in=FAN_IN)
    inside = _inside(workers, mechanism, canaries, "participants")
    workers.close()
    return inside


def _inside(
    workers: WorkerGroup, mechanism: PrivateRound, canaries: int, nonce: str
) -> NDArray[np.bool_]:
    """Return which canaries workers take for the draw that a nonce names."""
    call = {"parameters": np.zeros(canaries, np.float32), "nonce": nonce}
    total: NDArray[np.float64] = np.stack(workers.call("clipped_sum", call)).sum(axis=0)
    return total > mechanism.clip_norm / 2


@dataclass(frozen=True, kw_only=True)
class _Round:
    """One charged round over canaries, in a folder of its own."""

    mechanism: PrivateRound
    canaries: int
    rows: int
    folder: Path
    executor: Executor
    insecure_key: int | None

    def run(self) -> tuple[NDArray[np.bool_], NDArray[np.float64], float]:
        """Return who took part, the noisy sum, and mu as the ledger has it."""
        ledger = self._open_ledger()
        secret = SecretOfRun(run_id=_RUN, ledger=ledger, insecure_key=self.insecure_key)
        specs = _worker_specs(self.mechanism, self.canaries, secret, self.rows)
        workers = start_workers(self.executor, specs, fan_in=FAN_IN)
        spec = self._server_spec(workers, ledger)
        server = self.executor.start(ParameterServer, [spec], service=True)
        server.call("advance", {"rounds": 1})
        entry = ledger.reserved(_RUN)
        assert entry is not None  # opened above
        (event,) = entry.event["events"]
        server.close()
        tensors, state = load_checkpoint(self._trained, run_id=_RUN, stage="rounds")
        nonce = draw_nonce(spec, state.block_nonce, round_index=0)
        inside = _inside(workers, self.mechanism, self.canaries, nonce)
        workers.close()
        ledger.close()
        # Without momentum Adam's first moment is the step's gradient: the noisy sum / denominator.
        released = tensors["exp_avg"].double().numpy() * self._expected_units
        return inside, released, 1 / event["noise_multiplier"]

    @property
    def _trained(self) -> Path:
        return self.folder / "rounds.safetensors"

    @property
    def _expected_units(self) -> float:
        return self.mechanism.sampling_probability * self.canaries

    def _open_ledger(self) -> Ledger:
        ledger = Ledger(f"sqlite:///{self.folder / 'ledger.sqlite'}")
        event = self.mechanism.event(1)
        relation, delta = self.mechanism.relation, 1e-6
        cost = epsilon((event,), delta=delta, relation=relation, accountant="pld", certified=False)
        budget = PrivacyBudget(epsilon=cost, delta=delta, unit=TRANSITION, relation=relation)
        ledger.set_budget(dataset=_DATASET, fingerprint=_FINGERPRINT, budget=budget)
        charge = Charge(
            entry_id=_RUN,
            kind="rounds",
            dataset=_DATASET,
            fingerprint=_FINGERPRINT,
            unit=budget.unit,
            relation=budget.relation,
            epsilon=budget.epsilon,
            delta=budget.delta,
            event=charged_rounds([event]),
        )
        ledger.open_together([charge])
        return ledger

    def _server_spec(self, workers: WorkerGroup, ledger: Ledger) -> ServerSpec:
        initial = self.folder / "initial.safetensors"
        state = CheckpointState(run_id=_RUN, round_index=0, stage="pretraining")
        save_checkpoint(initial, {"parameters": torch.zeros(self.canaries)}, state)
        return ServerSpec(
            run_id=_RUN,
            workers=workers,
            initial=initial,
            checkpoint=self._trained,
            mechanism=self.mechanism,
            expected_units=self._expected_units,
            rounds=1,
            max_rounds=1,
            block_rounds=1,
            optimiser=OptimiserConfig(beta1=0.0),
            ledger=ledger,
            insecure_key=self.insecure_key,
        )
