"""Whole trajectories, fragment after fragment: post-processing of the released model.

Reference: PrivORL, section VI-C and figure 2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.fragments import END_BITS, FragmentEncoder
from distributed_privrl.data.trajectories import Trajectories, offsets_of
from distributed_privrl.methods.privorl.fragment_network import FragmentSynthesizer
from distributed_privrl.methods.privorl.sampling_config import StitchingConfig
from distributed_privrl.models.chunks import chunk_count

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from distributed_privrl.core.random import Streams
    from distributed_privrl.models.ddpm import DDPMSampler
    from distributed_privrl.models.edm import Precision


@dataclass(frozen=True, kw_only=True)
class TrajectoryDrawer:
    """Draws whole trajectories, their steps one after the other; see `release.ChunkDrawer`.

    The trajectories of a chunk advance together. A step whose end bit is set is its trajectory's
    last, so that a chunk needs no lengths beside it.

    Args:
        synthesizer: of the fragments.
        config: the sampler.
        trajectories: of all chunks together.
        max_length: steps of a trajectory at most; one that is cut there is marked truncated.
    """

    synthesizer: FragmentSynthesizer
    config: StitchingConfig
    trajectories: int
    max_length: int

    @property
    def count(self) -> int:
        """The number of chunks."""
        return chunk_count(rows=self.trajectories, chunk_rows=self.config.chunk_trajectories)

    def draw(self, network: nn.Module, index: int, *, streams: Streams, device: str) -> Tensor:
        """Return the encoded steps ``(sum T, S)`` of chunk ``index``."""
        import torch

        from distributed_privrl.methods.privorl.release import native_precision
        from distributed_privrl.models.ddpm import DDPMSampler

        size = self.config.chunk_trajectories
        steps = stitched_steps(
            network,
            self.synthesizer,
            DDPMSampler(steps=self.config.steps, stochasticity=self.config.stochasticity),
            count=min(size, self.trajectories - index * size),
            max_length=self.max_length,
            generator=torch.Generator(device).manual_seed(streams.integer(f"chunk/{index}")),
            precision=native_precision(self.config.precision, device),
        )
        return torch.from_numpy(steps)


def stitched_steps(
    network: nn.Module,
    synthesizer: FragmentSynthesizer,
    sampler: DDPMSampler,
    *,
    count: int,
    max_length: int,
    generator: torch.Generator,
    precision: Precision = "fp32",
) -> NDArray[np.float32]:
    """Return the encoded steps ``(sum T, S)`` of ``count`` trajectories; see `chained_steps`.

    Args:
        network: with the trained parameters.
        synthesizer: that built it.
        sampler: of a fragment.
        count: trajectories (N).
        max_length: steps of a trajectory at most.
        generator: public, on the network's device.
        precision: of the network.
    """

    def follow(condition: Tensor) -> Tensor:
        given = condition.to(generator.device)
        return synthesizer.sample(network, given, sampler, generator=generator, precision=precision)

    return chained_steps(synthesizer.fragments, follow, count=count, max_length=max_length)


def chained_steps(
    encoder: FragmentEncoder,
    follow: Callable[[Tensor], Tensor],
    *,
    count: int,
    max_length: int,
) -> NDArray[np.float32]:
    """Return the encoded steps ``(sum T, S)`` of ``count`` trajectories, one after the other.

    Each fragment follows the last step before it (zeros at the start), until one holds an end
    (`set_end_bits`) or the cap is reached; what a fragment holds after its end is dropped.

    Args:
        encoder: of the fragments.
        follow: from linking steps ``(N, S)`` to the fragments that follow them ``(N, H, S)``.
        count: trajectories (N).
        max_length: steps of a trajectory at most.
    """
    import torch

    condition = np.zeros((count, encoder.step_width), dtype=np.float32)
    parts: list[list[NDArray[np.float32]]] = [[] for _ in range(count)]
    live = np.arange(count)
    for passed in range(0, max_length, encoder.horizon):
        steps = follow(torch.from_numpy(condition)).cpu().numpy()
        lengths = set_end_bits(steps)
        left = min(encoder.horizon, max_length - passed)
        going = lengths > left
        if passed + left == max_length:
            steps[going, left - 1, -1] = 1.0
        lengths = np.minimum(lengths, left)
        for trajectory, own, length in zip(live.tolist(), steps, lengths.tolist(), strict=True):
            parts[trajectory].append(own[:length])
        live = live[going]
        if len(live) == 0:
            break
        condition = linking_steps(encoder, steps[going, -1], passed + encoder.horizon)
    return np.concatenate([part for own in parts for part in own])


def set_end_bits(steps: NDArray[np.float32]) -> NDArray[np.int64]:
    """Find where fragments end, set their end bits to -1 or 1 in place, and return their lengths.

    After an end the end bits stay set, so every step bears witness: the end is where the sum of
    the larger bits from there on is largest, if it is above zero. A single bit that went astray
    ends nothing, and which end it is, is decided by the sums of both bits.

    Args:
        steps: ``(N, H, S)`` as they were drawn.

    Returns:
        ``(N,)`` steps up to the end and with it, H + 1 where a fragment holds no end.
    """
    bits = steps[..., -END_BITS:]
    sums = np.flip(np.flip(bits.max(axis=2), axis=1).cumsum(axis=1), axis=1)
    first, rows = sums.argmax(axis=1), np.arange(len(steps))
    ended = sums[rows, first] > 0
    after = np.arange(steps.shape[1]) >= first[:, None]
    kinds = (bits * after[..., None]).sum(axis=1).argmax(axis=1)
    bits[:] = -1.0
    bits[rows[ended], first[ended], kinds[ended]] = 1.0
    lengths: NDArray[np.int64] = np.where(ended, first + 1, steps.shape[1] + 1)
    return lengths


def linking_steps(
    encoder: FragmentEncoder, last: NDArray[np.float32], passed: int
) -> NDArray[np.float32]:
    """Return the conditions ``(N, S)`` after generated steps ``last`` ``(N, S)``.

    They are encoded anew from what is released, so that categories and levels are as exact as those
    of real linking steps.
    """
    decoded, _ = encoder.decode_steps(last)
    rows = encoder.transitions.encode(decoded).rows
    clock = encoder.clock(np.full(len(rows), passed))
    return np.concatenate([rows, clock[:, None]], axis=1)


def decode_trajectories(encoder: FragmentEncoder, steps: NDArray[np.float32]) -> Trajectories:
    """Return the trajectories in encoded ``steps`` ``(sum T, S)``, in raw units.

    Observations are the steps' own, and the last step's next observation; those between two steps
    are left out (`seam_errors` says how far they are from the next step's own).
    """
    transitions, _ = encoder.decode_steps(steps)
    ends = np.flatnonzero(_ends(steps))
    lengths = np.diff(ends, prepend=-1)
    observations = np.insert(
        transitions.observations, ends + 1, transitions.next_observations[ends], axis=0
    )
    return Trajectories(
        observations=observations,
        actions=transitions.actions,
        rewards=transitions.rewards,
        terminated=transitions.terminated,
        truncated=transitions.truncated & ~transitions.terminated,
        offsets=offsets_of(lengths),
        unit_ids=np.arange(len(lengths), dtype=np.uint64),
    )


def trajectories_of(steps: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the number of the trajectory of each of the encoded ``steps`` ``(sum T, S)``."""
    ends = _ends(steps)
    return np.asarray(np.cumsum(ends) - ends, np.int64)


def _ends(steps: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Say which steps ``(..., S)`` are their trajectory's last."""
    ends: NDArray[np.bool_] = np.any(steps[..., -END_BITS:] > 0, axis=-1)
    return ends


@dataclass
class SeamErrors:
    """How far s'_t is from s_{t+1}, before they are made one; means over pairs and columns.

    A Box column counts in its public scale, a category as 1 where it differs.
    """

    _sums: NDArray[np.float64]
    _counts: NDArray[np.float64]

    @classmethod
    def none(cls) -> SeamErrors:
        """Return the errors of no steps."""
        return cls(np.zeros(3), np.zeros(3))

    def add(self, encoder: FragmentEncoder, steps: NDArray[np.float32]) -> None:
        """Add the trajectories in encoded ``steps`` ``(sum T, S)``."""
        transitions, _ = encoder.decode_steps(steps)
        ends = _ends(steps)
        starts = np.flatnonzero(np.append(True, ends[:-1]))
        place = np.arange(len(steps)) - np.repeat(starts, np.diff(np.append(starts, len(steps))))
        pairs = np.flatnonzero(~ends)
        seam = (place[pairs] + 1) % encoder.horizon == 0
        now, after = transitions.observations[pairs], transitions.observations[pairs + 1]
        gaps = _distances(encoder, transitions.next_observations[pairs], after)
        for index, values in enumerate((gaps[~seam], gaps[seam], _distances(encoder, now, after))):
            self._sums[index] += values.sum()
            self._counts[index] += len(values)

    def facts(self) -> dict[str, float | None]:
        """Return the mean inside fragments, at their seams, and of a whole step beside them."""
        means = [
            float(total / count) if count else None
            for total, count in zip(self._sums, self._counts, strict=True)
        ]
        return dict(zip(("inside", "at_seams", "of_a_step"), means, strict=True))


def _distances(
    encoder: FragmentEncoder, one: NDArray[Any], other: NDArray[Any]
) -> NDArray[np.float64]:
    """Return the mean over columns of each pair's scaled distance, ``(N, ...) -> (N,)``."""
    distances: NDArray[np.float64]
    if one.dtype.kind in "iu":
        columns = int(np.prod(one.shape[1:]))  # -1 would not do for no pairs
        distances = (one != other).reshape(len(one), columns).mean(axis=1)
        return distances
    transitions = encoder.transitions
    scale = transitions.scaling.scale[transitions.layout.blocks["observation"]]
    distances = (np.abs(one - other) / scale).mean(axis=1)
    return distances
