"""What reads the units: workers whose teachers learn from disjoint units, and vote.

Reference: Jordon, Yoon and van der Schaar 2019, section 4.1, algorithm 1, lines 4 to 9.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from distributed_privrl.core.random import Streams
from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.shards import EncodedShard, ShardRef, load_shard
from distributed_privrl.methods.pate_gan.config import AdversaryConfig, VotingConfig
from distributed_privrl.methods.pate_gan.game import Trained, hidden_of
from distributed_privrl.methods.pate_gan.networks import Discriminators
from distributed_privrl.privacy.sampling import UnitPlacement
from distributed_privrl.rounds.worker import SecretSource

FAILED_VOTE = 0
"""What a teacher without rows, or whose parameters are not finite, says of every row: not real."""
NOT_THERE = np.empty(0, np.int64)
"""Answer of a worker whose teachers have not learned what came before the step."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TeacherSpec:
    """What a worker is built from: references and public facts.

    Args:
        ref: the dataset, as one shard; a worker reads the units of its own teachers.
        encoder: JSON of the `TransitionEncoder`.
        secret: gives what the units' places follow from.
        model: sizes, and how many teachers there are.
        training: what teachers learn in a step.
        seed: the run's public seed.
        student: parameters that teachers start from, of public pre-training; None: from their own.
        index: which worker, from 0.
        workers: how many there are; worker i owns the i-th part of the blocks.
        blocks: of teachers that are computed together, a public number that does not depend on
            ``workers``.
    """

    ref: ShardRef
    encoder: str
    secret: SecretSource
    model: AdversaryConfig
    training: VotingConfig
    seed: int
    student: Tensor | None = None
    index: int = 0
    workers: int = 1
    blocks: int = 1

    @property
    def own_blocks(self) -> list[range]:
        """The teachers of each block of this worker."""
        first, last = (self.blocks * i // self.workers for i in (self.index, self.index + 1))
        edge = self.model.teachers
        return [
            range(edge * block // self.blocks, edge * (block + 1) // self.blocks)
            for block in range(first, last)
        ]


class Teachers:
    """The teachers of a block, each with the rows of its own units.

    Privacy: what a teacher learns and votes follows from its own units' rows, from its number and
    from public facts. All shapes are public: a teacher draws as many rows, with replacement,
    however many it has, and those of a block are slices of batched products. A teacher without
    rows learns from zeros; neither it nor one whose parameters are not finite says anything else
    than `FAILED_VOTE`.

    Args:
        spec: of the worker.
        numbers: of the teachers.
        rows: of each teacher's units ``(N, D)``; none may be there.
    """

    def __init__(self, spec: TeacherSpec, numbers: range, rows: list[NDArray[np.float32]]) -> None:
        self._training, self._numbers = spec.training, numbers
        self._streams = Streams(spec.seed).child("pate_gan teachers")
        self._has_rows = torch.tensor([len(one) > 0 for one in rows])
        nothing = np.zeros((1, spec_width(spec)), np.float32)
        filled = [one if len(one) else nothing for one in rows]
        self._counts = np.array([len(one) for one in filled])
        self._starts = np.cumsum(self._counts) - self._counts
        self._rows = torch.from_numpy(np.concatenate(filled))
        network = Discriminators(
            spec_width(spec),
            hidden_of(spec.model),
            len(numbers),
            torch.Generator().manual_seed(self._streams.integer(f"start/{numbers.start}")),
        )
        if spec.student is not None:
            network.start_from(spec.student)
        self._network, self._learner = network, Trained(network, spec.training.optimiser)

    def learn(self, step: int, fakes: Tensor) -> None:
        """Tell own rows from generated ones ``(S, B, D)``, in S gradient steps."""
        training = self._training
        places = self._drawn(step, training.teacher_steps, training.teacher_batch)
        for each, fake in zip(places, fakes, strict=True):
            real = self._rows[each]
            rows = torch.cat([real, fake.expand(len(real), *fake.shape)], dim=1)
            labels = torch.zeros(rows.shape[:2])
            labels[:, : real.shape[1]] = 1
            losses = functional.binary_cross_entropy_with_logits(
                self._network(rows), labels, reduction="none"
            )
            self._learner.descend(losses.mean(dim=1).sum())  # a sum couples no two gradients

    def _drawn(self, step: int, steps: int, batch: int) -> Tensor:
        """Return places of rows ``(S, E, B)``: each teacher's are drawn by its own number."""
        uniforms = [
            self._streams.numpy(f"rows/{number}/{step}").random((steps, batch))
            for number in self._numbers
        ]
        counts, starts = self._counts[:, None, None], self._starts[:, None, None]
        within = np.minimum((np.stack(uniforms) * counts).astype(np.int64), counts - 1)
        return torch.from_numpy(np.ascontiguousarray((starts + within).swapaxes(0, 1)))

    def votes(self, samples: Tensor) -> NDArray[np.int64]:
        """Return each teacher's vote on samples ``(K, D)``, ``(E, K)``: 1: real, else 0."""
        with torch.no_grad():
            logits = self._network(samples.expand(len(self._numbers), *samples.shape))
        sound = (self._has_rows & self._network.finite)[:, None]
        real = torch.where(sound, logits > 0, torch.tensor(bool(FAILED_VOTE)))
        found: NDArray[np.int64] = real.numpy().astype(np.int64)
        return found


def spec_width(spec: TeacherSpec) -> int:
    """Return how many numbers a row has."""
    return TransitionEncoder.from_json(spec.encoder).width


class TeacherWorker:
    """Owns blocks of teachers, and counts their votes.

    Privacy: a unit sits with one teacher, by a keyed hash of its id under the run's secret
    (`UnitPlacement`), whatever rows it or others have. So a unit that comes, goes or becomes null
    changes one teacher, and the count of each sample by 1 at most; one that becomes another unit,
    of another id, changes two, and the count by 2 at most. Counts are integers: exact, in any
    order. They are raw: the server adds noise before anything else. Teachers stay in this process
    and are written nowhere; one that takes the place of a lost worker has them learn again.
    """

    def __init__(self, spec: TeacherSpec) -> None:
        self._spec = spec
        self._blocks: list[Teachers] = []
        self._learned = 0

    def learn(self, step: int, fakes: NDArray[np.float32]) -> None:
        """Have the teachers learn ``fakes`` of ``step``, unless they have.

        Args:
            step: 0 for the first; they have learned all before it, or more.
            fakes: generated rows ``(S, B, D)``.
        """
        if not self._blocks:
            self._blocks = [
                Teachers(self._spec, numbers, rows)
                for numbers, rows in _rows_of_teachers(self._spec)
            ]
        if step == self._learned:
            for block in self._blocks:
                block.learn(step, _tensor(fakes))
            self._learned += 1

    def votes(
        self, step: int, fakes: NDArray[np.float32], samples: NDArray[np.float32]
    ) -> NDArray[np.int64]:
        """Have the teachers learn, and return their votes for real ``(K,)``, summed.

        A repeated call gives the same answer.

        Args:
            step: 0 for the first.
            fakes: generated rows that they learn from ``(S, B, D)``.
            samples: generated rows that they vote on ``(K, D)``.

        Returns:
            the sums, or `NOT_THERE` from a worker that has to learn earlier steps first.
        """
        if not step <= self._learned <= step + 1:
            if self._learned > step:  # the server went back further: what was learned is not there
                self._blocks, self._learned = [], 0
            return NOT_THERE
        self.learn(step, fakes)
        total = np.zeros(len(samples), np.int64)
        for block in self._blocks:
            total += block.votes(_tensor(samples)).sum(axis=0)
        return total


def _rows_of_teachers(
    spec: TeacherSpec,
) -> list[tuple[range, list[NDArray[np.float32]]]]:
    """Return the teachers of each own block, and the proper rows of each one's units."""
    own = spec.own_blocks
    placement = UnitPlacement(spec.secret(), spec.model.teachers)
    shard = load_shard(
        spec.ref, TransitionEncoder.from_json(spec.encoder), keep=_kept(placement, own)
    )
    teacher = np.repeat(placement.block_of(shard.unit_ids), np.diff(shard.offsets))
    return [(block, [_rows(shard, teacher == one) for one in block]) for block in own]


def _kept(
    placement: UnitPlacement, own: list[range]
) -> Callable[[NDArray[np.uint64]], NDArray[np.bool_]]:
    first, last = (own[0].start, own[-1].stop) if own else (0, 0)

    def keep(unit_ids: NDArray[np.uint64]) -> NDArray[np.bool_]:
        places = placement.block_of(unit_ids)
        return np.asarray((first <= places) & (places < last))

    return keep


def _rows(shard: EncodedShard, chosen: NDArray[np.bool_]) -> NDArray[np.float32]:
    return shard.rows[chosen & shard.valid]


def _tensor(values: NDArray[np.float32]) -> Tensor:
    return torch.tensor(values)  # a copy, aligned as all of torch's: what came by Ray is read-only
