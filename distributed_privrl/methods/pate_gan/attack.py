"""The student of a finished run under a membership attack: how real it takes each row to be."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.methods.pate_gan.game import Trained
from distributed_privrl.methods.pate_gan.method import PateGanMethod, World
from distributed_privrl.stages.context import RunContext

STUDENT = "student's loss of a real row"


@dataclass(frozen=True, eq=False)
class StudentAttack:
    """Losses of the student, which the generator, and so the release, learned from.

    Args:
        student: of the run.
        encoder: of rows.
        rounds: steps of votes.

    Privacy: losses of sensitive rows are raw private data, for ``private/`` alone.
    """

    student: Trained
    encoder: TransitionEncoder
    rounds: int
    settings: tuple[str, ...] = (STUDENT,)

    def losses(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return -log of how likely each row is real ``(N, 1)``; see `LossAttack.losses`."""
        encoded = self.encoder.encode(transitions)
        with torch.no_grad():
            logits = self.student.network(torch.from_numpy(encoded.rows)[None])[0]
            losses = functional.softplus(-logits).double().numpy()
        return np.where(encoded.valid, losses, np.nan)[:, None]


def open_attack(method: PateGanMethod, world: World, context: RunContext) -> StudentAttack:
    """Return the attack on a finished run.

    Args:
        method: that ran.
        world: as its stage began with it.
        context: of the run.

    Raises:
        StorageError: the checkpoint cannot be read.

    Privacy: nothing is drawn or charged; the student follows from what was released.
    """
    game = method.played(world, context).game
    return StudentAttack(game.pair.student, world.encoder, game.learned)
