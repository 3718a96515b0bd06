"""The released model under a membership attack: how unlikely it finds each row."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.packing import ends_of
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.marginals.drawer import Drawer
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.run import TableRun, World
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.marginals.steps import Steps, steps_in_time
from distributed_privrl.rounds.checkpoint import load_checkpoint
from distributed_privrl.stages.context import RunContext

LIKELIHOOD = "negative log-likelihood"
_LEAST = 1e-9


@dataclass(frozen=True, eq=False)
class ModelAttack:
    """Losses under the model that the release was drawn from: of the bins that a row lies in.

    Args:
        model: of the run.
        rounds: steps that released something of sensitive rows.

    Privacy: losses of sensitive rows are raw private data, for ``private/`` alone.
    """

    model: TableModel
    rounds: int
    settings: tuple[str, ...] = (LIKELIHOOD,)

    def losses(self, transitions: Transitions) -> NDArray[np.float64]:
        """Return minus the log-probability of each row's bins; see `LossAttack.losses`."""
        columns = self.model.columns
        steps = steps_of(transitions) if columns.of("time") else Steps(transitions)
        _, unit, counts = np.unique(transitions.unit_ids, return_inverse=True, return_counts=True)
        coded = columns.coded(steps).of_units(columns, counts[unit])
        bins = [shape.bins[coded.cells[:, i]] for i, shape in enumerate(self.model.shapes)]
        rows = np.stack(bins, axis=1).astype(np.int32)
        losses = -Drawer(self.model.field).log_likelihoods(rows)
        unseen = ~columns.followed(rows)
        losses[unseen] += self._of_successors(rows[unseen])
        losses -= self._log_weights(rows)
        return np.where(coded.valid, losses, np.nan)[:, None]

    def _log_weights(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return how much likelier the release has rows than the model, as logarithms ``(N,)``.

        Rows are chosen by correlations; whole trajectories are, too, and of these a row by itself
        tells nothing: there it is 0.
        """
        model = self.model
        if model.columns.of("time") or model.tilted is None or model.traits is None:
            return np.zeros(len(rows))
        return np.log(np.maximum(model.tilted.weights(model.traits.of(rows)), _LEAST))

    def _of_successors(self, rows: NDArray[np.int32]) -> NDArray[np.float64]:
        """Return the log-probability ``(N,)`` of next observations given the rest of rows."""
        columns = self.model.columns
        after = columns.of("next_observation")
        given = [place for place in range(len(columns)) if place not in after]
        return Drawer(self.model.field, given).log_likelihoods(rows)


def steps_of(transitions: Transitions) -> Steps:
    """Return transitions of whole units, in dataset order, as steps of their trajectories.

    A trajectory ends where a step says so, the unit changes, or the next step begins elsewhere than
    this one led to.

    Args:
        transitions: of whole units.
    """
    units = transitions.unit_ids
    ends = ends_of(transitions) | np.append(units[1:] != units[:-1], True)
    led_to, begun = transitions.next_observations[:-1], transitions.observations[1:]
    ends[:-1] |= (led_to != begun).any(axis=tuple(range(1, begun.ndim)))
    begins = np.append(True, ends[:-1])
    places = np.arange(len(transitions))
    times = places - np.maximum.accumulate(np.where(begins, places, 0))
    rows = replace(transitions, truncated=ends & ~transitions.terminated)
    return steps_in_time(rows, times)


def open_attack(method: TableRun[TableModel], world: World, context: RunContext) -> ModelAttack:
    """Return the attack on a finished run.

    Args:
        method: that ran.
        world: as its stage began with it.
        context: of the run.

    Raises:
        BudgetError: crashes used up all of the run's steps.
        StorageError: the checkpoint cannot be read.

    Privacy: nothing is drawn or charged; the model follows from what was released.
    """
    path = context.folder / CHECKPOINT
    _, state = load_checkpoint(path, run_id=context.run_id, stage="rounds")
    return ModelAttack(
        model=method.model(world, context),
        rounds=state.round_index,
    )
