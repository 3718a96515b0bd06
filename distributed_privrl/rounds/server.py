"""The parameter server: asks the workers, adds the noise once, steps, reserves and commits."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.noise import most_exact_units
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.optimiser import ServerOptimiser, as_gradient
from distributed_privrl.rounds.optimiser_config import OptimiserConfig
from distributed_privrl.rounds.round_server import RoundServer, RoundServerSpec
from distributed_privrl.rounds.totals import total_of

PUBLIC_STATE = "public."
_MARGIN = 7  # standard deviations of how many take part; beyond them a worker refuses


class PublicUpdate:
    """What surrounds the noise of a round, from released parameters alone; this one does nothing.

    Privacy: post-processing. It is given parameters that earlier rounds released and a round's
    number, lives in the server's process, and never sees a partial sum.
    """

    def fixed(self) -> NDArray[np.floating] | None:
        """Return the numbers that losses read and no round trains, ``(F,)``: a target network.

        Workers get them behind the parameters. See `FlatParameters.load`.
        """
        return None

    def vector_sum(
        self, parameters: NDArray[np.floating], round_index: int
    ) -> NDArray[np.floating] | None:
        """Return what joins the noisy sum ``(P,)`` at ``parameters`` ``(P,)``; None: nothing."""
        return None

    def after_round(self, parameters: Tensor, round_index: int) -> None:
        """Go on from the ``parameters`` ``(P,)`` that round ``round_index`` led to, in place."""

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold to go on."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Go on from the tensors of a checkpoint."""


class PublicUpdateFactory(Protocol):
    """Builds a public update in the server's process; picklable, knows public facts alone."""

    def __call__(self) -> PublicUpdate:
        """Return a fresh public update."""
        ...


@dataclass(frozen=True, kw_only=True)
class ServerSpec(RoundServerSpec):
    """What a parameter server is built from, beside `RoundServerSpec`.

    Args:
        workers: the group of `LocalUpdateWorker`, or of those that add up for them.
        initial: checkpoint with the parameters to start from.
        mechanism: the calibrated round; None trains without privacy.
        expected_units: the fixed public denominator: ``q x units`` and the public update's vectors.
        optimiser: the server's step.
        public_update: what surrounds the noise of each round; None: nothing does.
    """

    workers: WorkerGroup
    initial: Path
    mechanism: PrivateRound | None
    expected_units: float
    optimiser: OptimiserConfig
    public_update: PublicUpdateFactory | None = None


class ParameterServer(RoundServer):
    """Runs private rounds.

    Privacy: unit and relation of the mechanism; one Gaussian draw of standard deviation
    ``noise_multiplier x clip_norm`` a round, added to the sum of all workers' clipped sums before
    anything else sees it; the denominator is the public ``expected_units``. A public update is
    post-processing: it is given the parameters before and after the round, and its number, and
    lowers no event: there is one draw a round, whatever it does between them. Event:
    ``poisson_gaussian``, counted in the ledger before it is drawn (committed <= drawn <= reserved).
    Partial sums and the noise's key stay in this process and are never written. Their sum is exact:
    so many units as float64 could not add without rounding are refused, here by the public number
    that is expected, in each worker by its part of the largest number (`ExactSum.count`).
    """

    def __init__(self, spec: ServerSpec) -> None:
        if (spec.mechanism is None) != (spec.ledger is None):
            raise UnsafeError("noise and ledger go together: what is drawn must be charged")
        self._spec = spec
        tensors, _ = load_checkpoint(spec.initial, run_id=spec.run_id, stage="pretraining")
        vector = tensors["parameters"].clone()
        if spec.mechanism is not None:
            _check_exact(spec.mechanism, spec.expected_units, vector.numel())
        self._optimiser = ServerOptimiser(vector, spec.optimiser, total_steps=spec.rounds)
        self._total = np.empty(vector.numel())
        self._gradient = torch.empty_like(vector)
        self._public = None if spec.public_update is None else spec.public_update()
        super().__init__(spec, dimension=vector.numel())

    def _tensors(self) -> dict[str, Tensor]:
        tensors = self._optimiser.tensors()
        if self._public is not None:
            state = self._public.tensors()
            tensors |= {f"{PUBLIC_STATE}{name}": value for name, value in state.items()}
        return tensors

    def _restore(self, tensors: dict[str, Tensor], rounds: int) -> None:
        self._optimiser.restore(tensors, steps=rounds)
        if self._public is not None:
            state = {name.partition(PUBLIC_STATE)[2]: value for name, value in tensors.items()}
            state.pop("", None)
            self._public.restore(state)

    def _run_round(self) -> None:
        partial_sums = self._spec.workers.call(
            "clipped_sum",
            {"parameters": self._broadcast(), "nonce": self._draw_nonce},
        )
        total = total_of(partial_sums, out=self._total)
        self._count_round()
        if self._spec.mechanism is not None and self._noise is not None:
            total = self._spec.mechanism.add_noise(
                total, self._noise, round_index=self._round, out=self._total
            )
        if self._public is not None:
            public = self._public.vector_sum(self._parameters(), self._round)
            if public is not None:
                total = np.add(total, public, out=self._total)
        self._optimiser.step(as_gradient(total, self._spec.expected_units, out=self._gradient))
        if self._public is not None:
            self._public.after_round(self._optimiser.vector, self._round)
        self._round += 1

    @property
    def _draw_nonce(self) -> str:
        """What names this draw of noise: coins follow from it, so no two draws share one."""
        return draw_nonce(self._spec, self._nonce, round_index=self._round)

    def _broadcast(self) -> NDArray[np.floating]:
        """Return the parameters, and behind them what losses read and no round trains."""
        fixed = None if self._public is None else self._public.fixed()
        own = self._parameters()
        return own if fixed is None else np.concatenate([own, fixed.astype(own.dtype, copy=False)])

    def _parameters(self) -> NDArray[np.floating]:
        view: NDArray[np.floating] = self._optimiser.vector.detach().cpu().numpy()
        return view


def draw_nonce(spec: ServerSpec, block_nonce: str, *, round_index: int) -> str:
    """Return what names a draw of noise for the workers, whose coins follow from it.

    It has the block's nonce in it, which a rebuilt server never takes up again. Rounds of tests and
    without privacy are numbered, so that they can be repeated.

    Args:
        spec: of the server that draws.
        block_nonce: names the reservation that is drawn from.
        round_index: number of the round.
    """
    if spec.ledger is None or spec.insecure_key is not None:
        return str(round_index)
    return f"{block_nonce}/{round_index}"


def _check_exact(mechanism: PrivateRound, expected_units: float, dimension: int) -> None:
    """Refuse a round of which so many units are expected that their sum would be rounded.

    Raises:
        UnsafeError: it is such a round; nothing was reserved.
    """
    most = most_exact_units(mechanism.clip_norm, dimension)
    if expected_units + _MARGIN * math.sqrt(expected_units) > most:
        raise UnsafeError(
            f"a round has {expected_units:g} units on average, and exact sums of {dimension}"
            f" numbers hold {most}: lower training.expected_batch_size"
        )
