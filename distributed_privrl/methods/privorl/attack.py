"""The trained denoiser under a membership attack: the loss of each row, at several noise levels.

Reference: Matsumoto, Miura, Yanai, "Membership inference attacks against diffusion models" (2023),
the white-box loss attack; paper 000, section IX-D.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from distributed_privrl.core.config import NoisyBounds
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.config import DenoiserConfig, PrivorlNConfig
from distributed_privrl.methods.privorl.network import build_denoiser
from distributed_privrl.methods.privorl.run import TRAINED
from distributed_privrl.methods.privorl.scaling import public_encoder, search_ranges
from distributed_privrl.privacy.units import Relation
from distributed_privrl.rounds.bounding import find_bounds
from distributed_privrl.rounds.charging import count_units
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.rounds.context import RunContext
from distributed_privrl.rounds.parameters import FlatParameters

NOISE_QUANTILES = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
"""Standard normal values whose noise levels are tried: where training draws most of its own."""
DRAWS = 8
_BATCH_ROWS = 4096


class DenoiserAttack:
    """Losses of the denoiser that the release was sampled from (the moving average).

    The noise of a draw is the same for every row, so that rows differ by themselves alone.

    Args:
        config: of the denoiser.
        encoder: the run's.
        parameters: flat ``(P,)``.
        rounds: that they were trained for.
        seed: the run's public seed.
        draws: noise vectors a level.

    Privacy: losses of sensitive rows are raw private data, for ``private/`` alone.
    """

    def __init__(
        self,
        config: DenoiserConfig,
        encoder: TransitionEncoder,
        parameters: torch.Tensor,
        *,
        rounds: int,
        seed: int,
        draws: int = DRAWS,
    ) -> None:
        self._encoder = encoder
        self._diffusion = config.diffusion()
        self._network = build_denoiser(config, row_width=encoder.width, seed=seed)
        FlatParameters(self._network).load(parameters)
        self._levels = self._diffusion.training_sigma(torch.tensor(NOISE_QUANTILES))
        generator = torch.Generator().manual_seed(Streams(seed).integer("attack"))
        shape = (len(self._levels), draws, encoder.width)
        self._noise = torch.randn(shape, generator=generator)
        self._rounds = rounds

    @property
    def settings(self) -> tuple[str, ...]:
        """The noise levels."""
        return tuple(f"noise level {level:.3g}" for level in self._levels.tolist())

    @property
    def rounds(self) -> int:
        """How many rounds the denoiser was trained on sensitive rows."""
        return self._rounds

    def losses(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return the mean loss of each row at each noise level; see `LossAttack.losses`."""
        encoded = self._encoder.encode(transitions)
        losses = np.full((len(transitions), len(self._levels)), np.nan)
        positions = np.flatnonzero(encoded.valid)
        for start in range(0, len(positions), _BATCH_ROWS):
            part = positions[start : start + _BATCH_ROWS]
            losses[part] = self._mean_losses(torch.from_numpy(encoded.rows[part]))
        return losses

    def _mean_losses(self, rows: torch.Tensor) -> NDArray[np.float64]:
        means = []
        with torch.inference_mode():
            for level, noises in zip(self._levels, self._noise, strict=True):
                sigma = level.expand(len(rows))
                total = torch.zeros(len(rows), dtype=torch.float64)
                for noise in noises:
                    total += self._diffusion.loss(
                        self._network, rows, sigma, noise.expand_as(rows)
                    ).double()
                means.append(total / len(noises))
        columns: NDArray[np.float64] = torch.stack(means, dim=1).numpy()
        return columns


def open_attack(config: PrivorlNConfig, context: RunContext) -> DenoiserAttack:
    """Return the attack on a finished run.

    Args:
        config: of the run.
        context: of the run; its ledger is read where bounds were found with noise.

    Raises:
        ConfigError: the ledger does not know what the run released before its rounds.
        StorageError: the checkpoint cannot be read.

    Privacy: nothing is drawn or charged; releases of the run are read from the ledger again.
    """
    tensors, state = load_checkpoint(
        context.folder / TRAINED, run_id=context.run_id, stage="rounds"
    )
    return DenoiserAttack(
        config.model,
        _encoder(config, context),
        tensors["ema"],
        rounds=state.round_index,
        seed=config.seed,
    )


def _encoder(config: PrivorlNConfig, context: RunContext) -> TransitionEncoder:
    """Return the run's encoder; bounds that it found with noise come from the ledger."""
    ranges = search_ranges(config, context.store)
    if ranges is None or not isinstance(config.data.bounds, NoisyBounds):
        return public_encoder(config, context.store)
    names = ["bounds"] if isinstance(config.data.units, int) else ["count", "bounds"]
    for name in names:
        entry = context.ledger.reserved(f"{context.run_id}/{name}")
        if entry is None or entry.status != "settled":
            raise ConfigError(
                f"the ledger does not hold the noisy {name} of {context.run_id}: give --ledger URL"
                " of the ledger that the run was charged to"
            )
    relation = Relation(config.privacy.relation)
    units, _ = count_units(config.data, context, relation=relation)
    bounds, _ = find_bounds(config.data, context, ranges, relation=relation, units=units)
    return public_encoder(config, context.store, bounds)
