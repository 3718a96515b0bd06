"""Votes, step by step: generated rows go out to teachers, noisy counts come back.

Reference: Jordon, Yoon and van der Schaar 2019, algorithm 1, lines 10 to 16.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.methods.pate_gan.game import Game, GameSpec, Lesson
from distributed_privrl.methods.pate_gan.votes import VoteRelease
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.releases import Program

_ANSWERS, _DIGEST = "answers", "digest"


@dataclass(frozen=True, kw_only=True, eq=False)
class VotesSpec:
    """What a program is built from.

    Args:
        game: public facts of the game.
        release: draws the noise of counts; of the plan; None without privacy.
    """

    game: GameSpec
    release: VoteRelease | None

    def __call__(self) -> "VotesProgram":
        """Return a fresh program."""
        return VotesProgram(self)


class VotesProgram(Program):
    """Asks teachers about generated rows, and plays the public game by their noisy answers.

    Privacy: unit: whatever sits with one teacher (`TeacherWorker`). Relation and sensitivity: see
    `VoteRelease`. Events: of each step, one for each row that is voted on. A step's rows follow
    from earlier noisy answers and public seeds, so a step that is lost in a crash is asked again,
    of the same rows, and paid for again. Only noisy counts are kept: no vote of a teacher, and
    nothing that a teacher learned, reaches this process but in a sum that gets its noise here.

    Args:
        spec: public facts, and the noise.
    """

    def __init__(self, spec: VotesSpec) -> None:
        self._spec = spec
        self._game = Game(spec.game)
        votes = spec.game.training.votes_per_step
        self._answers: NDArray[np.int64] = np.empty((0, votes), np.int64)

    def prepare(self, index: int) -> None:
        """Learn the answers before step ``index``, and make its rows."""
        self.game.lesson()

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Count the votes on the step's rows, and release the counts: see `Program.step`."""
        total = self._counts(index, workers, self.game.lesson())
        if self._spec.release is not None and noise is not None:
            total = self._spec.release.release(total, noise, tag=index)
        self._answers = np.concatenate([self._answers, total[None]])

    def _counts(self, index: int, workers: WorkerGroup, lesson: Lesson) -> NDArray[np.int64]:
        """Return the exact counts ``(K,)``; teachers that were lost learn all again first."""
        asked = {"step": index, "fakes": lesson.fakes, "samples": lesson.samples}
        while True:
            counts = workers.call("votes", asked)
            if all(len(one) == len(lesson.samples) for one in counts):
                return np.asarray(np.sum(counts, axis=0, dtype=np.int64))
            self._teach_again(index, workers)

    def _teach_again(self, index: int, workers: WorkerGroup) -> None:
        """Have teachers learn all steps before ``index``, by the noisy answers and public seeds."""
        game = Game(self._spec.game)
        for step in range(index):
            workers.call("learn", {"step": step, "fakes": game.lesson().fakes})
            game.learn(self._answers[step])

    @property
    def game(self) -> Game:
        """The game after all answers that there are: post-processing."""
        while self._game.learned < len(self._answers):
            self._game.learn(self._answers[self._game.learned])
        return self._game

    def tensors(self) -> dict[str, Tensor]:
        """Return the noisy answers, and the game by all of them but the last."""
        answers = torch.from_numpy(self._answers.copy())
        return {**self._game.tensors(), _ANSWERS: answers, _DIGEST: self._digest}

    def restore(self, tensors: Mapping[str, Tensor], steps_done: int) -> None:
        """Take up what `tensors` returned; see `Program.restore`."""
        if not torch.equal(tensors[_DIGEST], self._digest):
            raise UnsafeError(
                "bounds, spaces, public rows or settings are not those that the votes were on:"
                " bring them back, or start a new run"
            )
        self._game.restore(tensors)
        self._answers = tensors[_ANSWERS].numpy().copy()

    @property
    def _digest(self) -> Tensor:
        """Says what the answers mean: coding, seed, settings, what pre-training ended with."""
        game = self._spec.game
        digest = hashlib.sha256(repr((game.encoder, game.seed, game.model, game.training)).encode())
        for name, values in sorted((game.start or {}).items()):
            digest.update(name.encode() + values.numpy().tobytes())
        return torch.tensor(list(digest.digest()), dtype=torch.uint8)
