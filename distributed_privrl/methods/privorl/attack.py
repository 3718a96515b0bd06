"""The trained model under a membership attack: the loss of each row, at several noise levels.

Reference: Matsumoto, Miura, Yanai, "Membership inference attacks against diffusion models" (2023),
the white-box loss attack; PrivORL, section IX-D.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.fragments import FragmentEncoder
from distributed_privrl.data.packing import ends_of, join_rows
from distributed_privrl.data.shards import group_by_unit
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.privorl.config import PrivorlNConfig, TrajectoriesConfig
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.method import PrivorlMethod, World
from distributed_privrl.methods.privorl.parts import Parts
from distributed_privrl.methods.privorl.pretraining import coding_digest
from distributed_privrl.methods.privorl.release import PRETRAINED, TRAINED
from distributed_privrl.methods.privorl.step_model import StepSynthesizer
from distributed_privrl.methods.privorl.token_model import TokenSynthesizer
from distributed_privrl.methods.privorl.update import Synthesizer, private_network
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext
from distributed_privrl.stages.training import load_trained

NOISE_QUANTILES = (-1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5)
"""Standard normal values whose noise levels are tried: where training draws most of its own."""
DRAWS = 8
LIKELIHOOD = "negative log-likelihood"
NOTHING_DRAWN = torch.zeros(1, 1, 0)
_BATCH_NUMBERS = 2**16

Learned = Callable[[Transitions], tuple[NDArray[np.float32], NDArray[np.int64]]]
"""From transitions to the rows that the model learns from ``(M, D)``, and where the loss of each
stands among the transitions' ``(M,)``."""


class ModelAttack:
    """Losses of the model that the release was sampled from (the moving average).

    The draws of a setting are the same for every row, so that rows differ by themselves alone.
    Parts of a row that public data alone taught are left out: they say nothing of membership.

    Args:
        synthesizer: of the run.
        network: with the parameters that the release was sampled from.
        learned: encodes transitions as the run's workers do.
        settings: what the settings are called.
        draws: of the loss, ``(S, N, Z)``: N for each setting, whose mean counts.
        rounds: that the parameters were trained for.

    Privacy: losses of sensitive rows are raw private data, for ``private/`` alone.
    """

    def __init__(
        self,
        synthesizer: Synthesizer,
        network: nn.Module,
        learned: Learned,
        *,
        settings: Sequence[str],
        draws: torch.Tensor,
        rounds: int,
    ) -> None:
        self._learned, self._row_loss = learned, synthesizer.row_loss
        self._network = network
        self._settings, self._draws, self._rounds = tuple(settings), draws, rounds
        self._batch_rows = max(1, _BATCH_NUMBERS // synthesizer.row_width)

    @property
    def settings(self) -> tuple[str, ...]:
        """What each column of losses is."""
        return self._settings

    @property
    def rounds(self) -> int:
        """How many rounds the model was trained on sensitive rows."""
        return self._rounds

    def losses(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return the mean loss of each setting; see `LossAttack.losses`."""
        rows, positions = self._learned(transitions)
        losses = np.full((len(transitions), len(self._settings)), np.nan)
        for start in range(0, len(rows), self._batch_rows):
            part = slice(start, start + self._batch_rows)
            losses[positions[part]] = self._mean_losses(torch.from_numpy(rows[part]))
        return losses

    def _mean_losses(self, rows: torch.Tensor) -> NDArray[np.float64]:
        means = []
        with torch.inference_mode():
            for draws in self._draws:
                total = torch.zeros(len(rows), dtype=torch.float64)
                for draw in draws:
                    own = draw.expand(len(rows), -1)
                    total += self._row_loss(self._network, rows, own).double()
                means.append(total / len(draws))
        columns: NDArray[np.float64] = torch.stack(means, dim=1).numpy()
        return columns


def diffusion_draws(synthesizer: Synthesizer, *, seed: int, draws: int = DRAWS) -> torch.Tensor:
    """Return what a diffusion loss draws ``(S, N, Z)``: a noise level of `NOISE_QUANTILES`, noise.

    Args:
        synthesizer: of the run.
        seed: the run's public seed.
        draws: noise vectors a level (N).
    """
    generator = torch.Generator().manual_seed(Streams(seed).integer("attack"))
    shape = (len(NOISE_QUANTILES), draws, synthesizer.row_loss.draw_count - 1)
    levels = torch.tensor(NOISE_QUANTILES)[:, None, None].expand(*shape[:2], 1)
    return torch.cat((levels, torch.randn(shape, generator=generator)), dim=2)


def open_attack(method: PrivorlMethod, world: World, context: RunContext) -> ModelAttack:
    """Return the attack on a finished run: each transition has a loss, or each fragment.

    Args:
        method: that ran.
        world: as its stages began with it.
        context: of the run.

    Raises:
        StorageError: a checkpoint cannot be read.
        UnsafeError: public datasets, spaces or bounds are not those of the run any more.

    Privacy: nothing is drawn or charged.
    """
    world = method.recalled(world, context)
    config, synthesizer = method.config, world.parts.synthesizer
    settings, draws = [LIKELIHOOD], NOTHING_DRAWN
    if isinstance(config, PrivorlNConfig):
        sigmas = config.model.diffusion().training_sigma(torch.tensor(NOISE_QUANTILES))
        settings = [f"noise level {sigma:.3g}" for sigma in sigmas.tolist()]
        draws = diffusion_draws(synthesizer, seed=config.seed)
    elif isinstance(synthesizer, FragmentSynthesizer):
        ddpm = synthesizer.model.ddpm()
        steps = ddpm.training_timestep(torch.tensor(NOISE_QUANTILES)).tolist()
        settings = [f"diffusion step {step} of {ddpm.steps}" for step in steps]
        draws = diffusion_draws(synthesizer, seed=config.seed)
    learned: Learned
    if isinstance(synthesizer, FragmentSynthesizer | StepSynthesizer | TokenSynthesizer):
        assert isinstance(config, TrajectoriesConfig)
        most = config.training.max_fragments_per_unit
        learned = partial(first_fragments, synthesizer.fragments, most)
    else:
        learned = partial(_proper_rows, TransitionEncoder.from_json(world.parts.rows.encoder))
    network, rounds = _trained(method, world.parts, context)
    return ModelAttack(synthesizer, network, learned, settings=settings, draws=draws, rounds=rounds)


def _trained(method: PrivorlMethod, parts: Parts, context: RunContext) -> tuple[nn.Module, int]:
    """Return the network that the release was sampled from, and how many rounds trained it."""
    pretrained, run_id = context.folder / PRETRAINED, context.run_id
    coding = coding_digest(parts.rows.encoder, parts.synthesizer)
    load_checkpoint(pretrained, run_id=run_id, stage="pretraining", coding=coding)
    seed = method.config.seed
    network = private_network(parts.synthesizer, seed, pretrained=pretrained, run_id=run_id)
    return network, load_trained(context.folder / TRAINED, network, context)


def _proper_rows(
    encoder: TransitionEncoder, transitions: Transitions
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    encoded = encoder.encode(transitions)
    return encoded.rows[encoded.valid], np.flatnonzero(encoded.valid)


def first_fragments(
    encoder: FragmentEncoder, most: int, transitions: Transitions
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return the fragments that a worker would train on, and a place for the loss of each.

    A trajectory ends where a step says so, the unit changes, or the next step begins elsewhere than
    this one led to (a recording that stopped without a word). The loss of a unit's k-th fragment
    stands at its k-th transition, so that a mean over those with a loss is one over fragments.

    Args:
        encoder: cuts and encodes trajectories.
        most: public cap on the fragments of a unit.
        transitions: of whole units, in dataset order, cut as the worker cuts them.

    Returns:
        the proper fragments ``(M, W)``, and positions ``(M,)`` among the transitions.
    """
    units = transitions.unit_ids
    ends = ends_of(transitions) | np.append(units[1:] != units[:-1], True)
    ends[:-1] |= _elsewhere(transitions.next_observations[:-1], transitions.observations[1:])
    trajectories = join_rows(transitions, np.diff(np.flatnonzero(ends) + 1, prepend=0))
    encoded = encoder.encode(trajectories)
    shard = group_by_unit(encoded.rows, encoded.valid, encoded.unit_ids, max_rows_per_unit=most)
    order = np.argsort(units, kind="stable")
    starts = np.searchsorted(units[order], shard.unit_ids) - shard.offsets[:-1]
    places = order[np.repeat(starts, np.diff(shard.offsets)) + np.arange(len(shard.rows))]
    return shard.rows[shard.valid], places[shard.valid]


def _elsewhere(reached: NDArray[Any], begun: NDArray[Any]) -> NDArray[np.bool_]:
    """Return in which rows two observations differ ``(N,)``; numbers that are none are alike."""
    differ = (reached != begun) & ~((reached != reached) & (begun != begun))
    elsewhere: NDArray[np.bool_] = differ.any(axis=tuple(range(1, differ.ndim)))
    return elsewhere
