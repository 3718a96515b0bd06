"""Mirror descent with momentum, by which models of private-PGM are estimated.

Plain mirror descent raises its step by a hundredth at a time, which takes most of a thousand
iterations where the first step is small, and has no momentum: cells of few rows come last. This one
has as low a loss after a tenth to a fifth of the iterations (``docs/design/0017-descent.md``).
"""

import math

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress
from distributed_privrl.marginals.loss import Loss

ESTIMATING = "estimating the model"
"""Of released counts: what the progress bar is called."""
_RISE, _SETTLED_RISE, _FALL = 1.5, 1.01, 0.5
"""Factors of the step: until it was too long once, after that, and where it is too long."""
_ENOUGH = 0.5
"""Part of what the slopes promise that a step must bring."""
_MEMORY = 3.0
"""Iterations after which momentum is one half."""
_BLOCK = 25
"""Iterations after which progress is told."""
_TOLERANCE, _PATIENCE = 1e-6, 4
"""Part of the loss that a block must find, and how many in a row may not."""


def descend(
    loss: Loss, start: NDArray[np.float64], *, most: int, progress: Progress
) -> NDArray[np.float64]:
    """Return potentials ``(T,)`` of a low loss.

    Each iteration goes on in the direction of the one before, and then follows the slopes of the
    loss in the sums. A step that lowers the loss by too little for its length is taken back and
    shortened; one that ends above the loss before it ends the momentum, which begins anew.

    Args:
        loss: of potentials.
        start: potentials, ``(T,)``.
        most: iterations; fewer are taken where the loss falls no more.
        progress: told how many iterations are behind.

    Raises:
        ValueError: the loss has no value at the start.

    References: McKenna, Sheldon and Miklau 2019, algorithm 1; Krichene, Bayen and Bartlett 2015
    (accelerated mirror descent); O'Donoghue and Candès 2015 (restarts).
    """
    progress(ESTIMATING, 0, most)
    potentials = before = start
    ahead = loss.at(start)
    if not math.isfinite(ahead.loss):
        raise ValueError("a model is estimated from counts and deviations that are finite")
    lowest, step, along, rise = math.inf, loss.first_step, 0, _RISE
    last, stalls = math.inf, 0
    for iteration in range(1, most + 1):
        found = loss.at(ahead.potentials - step * ahead.slopes)
        expected = _ENOUGH * float(ahead.slopes @ (ahead.sums - found.sums))
        if not ahead.loss - found.loss >= expected:  # nor where the loss has no value there
            step *= _FALL
            rise = _SETTLED_RISE
        else:
            step *= rise
            if found.loss <= lowest:
                potentials, before, lowest = found.potentials, potentials, found.loss
                along += 1
            else:
                along = 0
            momentum = along / (along + _MEMORY)
            ahead = loss.at(potentials + momentum * (potentials - before))
        if iteration % _BLOCK == 0:
            progress(ESTIMATING, iteration, most)
            stalls = stalls + 1 if last - lowest <= _TOLERANCE * max(lowest, 1.0) else 0
            last = lowest
            if stalls >= _PATIENCE:
                break
    progress(ESTIMATING, most, most)
    return potentials
