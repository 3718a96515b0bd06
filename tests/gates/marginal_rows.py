"""Gates on a run that pre-trains on marginals: both stages do what they certify.

Rows to pre-train on have no way from the sensitive rows but through the noise that is certified.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.encoding import EncodedRows, TransitionEncoder
from distributed_privrl.data.fragments import EncodedFragments, FragmentEncoder
from distributed_privrl.data.trajectories import Trajectories, Transitions
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.rollout import Rollout
from distributed_privrl.marginals.stage import CHECKPOINT
from distributed_privrl.methods.privorl.pretraining import Pretrainer
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.gates.whole_runs import WholeRun, gate_whole_run
from tests.worlds.world import World


@dataclass
class Drawn:
    """What a run of marginals drew and learned from.

    Args:
        noisy: released integers, and the deviation of the noise that was drawn for them.
        choices: how often something was chosen.
        transitions: drawn from the model.
        trajectories: drawn from the model, step after step.
        learned: JSON of the encoder, and rows, of each pre-training.
    """

    noisy: list[tuple[NDArray[np.int64], float]] = field(default_factory=list)
    choices: int = 0
    transitions: list[Transitions] = field(default_factory=list)
    trajectories: list[Trajectories] = field(default_factory=list)
    learned: list[tuple[str, NDArray[np.float32]]] = field(default_factory=list)


def gate_certified_marginal_rows(world: World, **changes: Any) -> None:
    """A run in ``world`` releases the marginals and the rounds that it certifies, no more."""
    config = world.config(**changes)
    world.afford(config)
    started: list[Any] = []

    def start() -> Any:
        started.append(world.start(config))
        return started[-1]

    with _watched() as seen:
        gate_whole_run(
            WholeRun(
                config=config,
                ledger=world.ledger,
                start=start,
                stages=["marginals", "fine-tune"],
                units=config.data.units,
                rows=(getattr(config.training, "all_fragments", False), 1),
                outputs=world.store.root,
            )
        )
    (result,) = started
    first, rounds = result.certificate.stages
    limit = config.privacy.delta
    assert first.delta + rounds.delta == pytest.approx(limit), "delta is not charged once"
    entries = {entry.id: entry for entry in world.ledger.entries()}
    run = result.directory.run_id
    for name, stage in ((f"{run}/marginals", first), (run, rounds)):
        assert entries[name].delta == stage.delta, f"{name} is charged another delta"
    assert_released_as_certified(first, seen)
    private = result.directory.working(private=True)
    assert_learned_from_what_was_released(private, run, seen)


def assert_released_as_certified(stage: Stage, seen: Drawn) -> None:
    """Fail if integers get other noise than is stated, or more is released or chosen."""
    stated: Counter[str] = Counter()
    choices = 0
    for event in stage.events:
        if event.kind == "bounded_range":
            choices += event.count
        else:
            assert event.kind == "discrete_gaussian", f"{event.kind} is certified"
            stated[f"{event.noise_multiplier * event.sensitivity:.9g}"] += event.count
    drawn = Counter(f"{deviation:.9g}" for _, deviation in seen.noisy)
    assert drawn == stated, f"noise of {dict(stated)} is certified, {dict(drawn)} was drawn"
    assert seen.choices == choices, f"{choices} choices are certified, {seen.choices} were made"


def assert_learned_from_what_was_released(folder: Path, run: str, seen: Drawn) -> None:
    """Fail if the model has other counts than the noisy ones, or others' rows are learned."""
    tensors, _ = load_checkpoint(folder / CHECKPOINT, run_id=f"{run}/marginals", stage="rounds")
    released = [noisy.reshape(-1) for noisy, _ in seen.noisy]
    for name, tensor in tensors.items():
        if name == "columns" or name.startswith("table."):
            counts = tensor.numpy().reshape(-1)
            same = any(np.array_equal(counts, one) for one in released)
            assert same, f"{name} of the model is not what the noise made of it"
    ((encoder, rows),) = seen.learned
    same = np.array_equal(rows, rows_that_were_drawn(seen, encoder))
    assert same, "other rows are learned than were drawn from the model"


def rows_that_were_drawn(seen: Drawn, encoder: str) -> NDArray[np.float32]:
    """Return what a run drew, encoded as it learns it: transitions, or fragments."""
    encoded: EncodedRows | EncodedFragments
    if seen.trajectories:
        assert not seen.transitions
        whole = Trajectories.concatenate(seen.trajectories)
        encoded = FragmentEncoder.from_json(encoder).encode(whole)
    else:
        (transitions,) = seen.transitions
        encoded = TransitionEncoder.from_json(encoder).encode(transitions)
    return encoded.rows[encoded.valid]


@contextmanager
def _watched() -> Iterator[Drawn]:
    """Watch noise, choices, and what is drawn from the model and learned."""
    seen = Drawn()
    noise, choose = SecureNoise.add_discrete_gaussian, SecureChooser.choose_exponential
    transitions, public = TableModel.transitions, Pretrainer._public_rows
    trajectories = Rollout.draw

    def noisy(self: Any, values: Any, *, standard_deviation: float, tag: int = 0) -> Any:
        released = noise(self, values, standard_deviation=standard_deviation, tag=tag)
        seen.noisy.append((released.copy(), standard_deviation))
        return released

    def chosen(self: Any, scores: Any, **about: Any) -> int:
        seen.choices += 1
        return choose(self, scores, **about)

    def drawn(self: TableModel, count: int, random: Any) -> Any:
        seen.transitions.append(transitions(self, count, random))
        return seen.transitions[-1]

    def rolled(self: Rollout, count: int, random: Any, **told: Any) -> Any:
        seen.trajectories.append(trajectories(self, count, random, **told))
        return seen.trajectories[-1]

    def learned(self: Pretrainer) -> Any:
        seen.learned.append((self._spec.rows.encoder, public(self)))
        return seen.learned[-1][1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureNoise, "add_discrete_gaussian", noisy)
        patch.setattr(SecureChooser, "choose_exponential", chosen)
        patch.setattr(TableModel, "transitions", drawn)
        patch.setattr(Rollout, "draw", rolled)
        patch.setattr(Pretrainer, "_public_rows", learned)
        yield seen
