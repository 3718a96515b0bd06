"""Gates on marginals: a run draws what it certifies, of what a unit moves as little as is charged.

Estimates are chains of conditionals here, which take no time: what is drawn does not depend on how
good a model is.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.marginals import belief, program
from distributed_privrl.marginals.correlations import questions_of
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.marginals.plan import integer_sensitivity, score_span
from distributed_privrl.marginals.shapes import ColumnShape
from distributed_privrl.marginals.tables import CUTS
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.events import (
    EVENTS,
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    Event,
)
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.privacy.verification import verify_certificate
from tests.marginals.programs import (
    Adds,
    Chooses,
    chained,
    plan_of,
    program_of,
    released_columns,
    resumed,
)
from tests.marginals.rows import column_counts, few_columns, group, joint_counts, steps_of
from tests.marginals.whole import whole_run
from tests.worlds.intake import Intake

Draw = tuple[str, float]
"""A choice and its scale, or a release and its standard deviation."""
B = (3.0, 1, 1.0, 3.0, True)
OPPOSITE = (0.0, 1, 0.0, 0.0, True)
"""Six of its eight sums of answers are the opposite of those of B, and no unit has more."""


@dataclass
class Seen:
    """What passed through the sources of randomness, and through workers.

    Args:
        draws: in order, each with the number of the reserved step that pays for it.
        noisy: what each release gave, and what it was given.
        raw: what each worker returned, and what candidates were scored by.
    """

    draws: list[tuple[int, Draw]] = field(default_factory=list)
    noisy: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = field(default_factory=list)
    raw: list[NDArray[np.int64]] = field(default_factory=list)


@contextmanager
def watched(ledger: Ledger) -> Iterator[Seen]:
    """Watch the draws of this process, all of one run's stage."""
    seen = Seen()
    choose, add = SecureChooser.choose_exponential, SecureNoise.add_discrete_gaussian
    columns, tables, score = CountWorker.columns, CountWorker.tables, program.score
    correlations = CountWorker.correlations

    def note(kind: str, value: float) -> None:
        (entry,) = (one for one in ledger.entries() if one.kind == "rounds")
        seen.draws.append((entry.reserved_rounds - 1, (kind, value)))

    def spy_choose(self: Any, scores: Any, *, scale: float, tag: int = 0) -> int:
        note("choice", scale)
        return choose(self, scores, scale=scale, tag=tag)

    def spy_add(self: Any, values: Any, *, standard_deviation: float, tag: int = 0) -> Any:
        note("release", standard_deviation)
        given = values.copy()
        noisy = add(self, values, standard_deviation=standard_deviation, tag=tag)
        seen.noisy.append((noisy, given))
        return noisy

    def spy_columns(self: CountWorker) -> Any:
        seen.raw.append(columns(self))
        return seen.raw[-1].copy()

    def spy_tables(self: CountWorker, bins: Any, cliques: Any) -> Any:
        answer = tables(self, bins, cliques)
        seen.raw.extend(answer)
        return [one.copy() for one in answer]

    def spy_correlations(self: CountWorker, bins: Any, questions: Any) -> Any:
        seen.raw.append(correlations(self, bins, questions))
        return seen.raw[-1].copy()

    def spy_score(counts: Any, *given: Any, **about: Any) -> int:
        seen.raw.append(counts.copy())
        return score(counts, *given, **about)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureChooser, "choose_exponential", spy_choose)
        patch.setattr(SecureNoise, "add_discrete_gaussian", spy_add)
        patch.setattr(CountWorker, "columns", spy_columns)
        patch.setattr(CountWorker, "tables", spy_tables)
        patch.setattr(CountWorker, "correlations", spy_correlations)
        patch.setattr(program, "score", spy_score)
        yield seen


def stated(events: Sequence[Event], relation: Relation) -> list[Draw]:
    """Return the draws that the events of a step state."""
    draws: list[Draw] = []
    for event in events:
        if isinstance(event, BoundedRangeEvent):
            draws += [("choice", score_span(relation) / event.epsilon)] * event.count
        elif isinstance(event, DiscreteGaussianEvent):
            deviation = event.noise_multiplier * event.sensitivity
            draws += [("release", deviation)] * event.count
    return draws


def check_certified(place: Intake, result: RunResult, seen: Seen) -> Stage:
    """What each reserved step drew is what its entry states, and all entries are certified."""
    checked = verify_certificate(
        result.directory.certificate, ledger=place.ledger, outputs_root=place.store.root
    )
    (stage,) = (one for one in checked.certificate.stages if one.name == "marginals")
    entry = place.ledger.reserved(result.directory.run_id)
    assert entry is not None
    relation = Relation(stage.relation)
    schedule = [EVENTS.validate_python(step) for step in entry.event["schedule"]]
    for number, events in enumerate(schedule[: entry.reserved_rounds]):
        drawn = [draw for step, draw in seen.draws if step == number]
        _check_same(drawn, stated(events, relation), f"step {number}")
    late = [draw for step, draw in seen.draws if step >= entry.reserved_rounds]
    assert not late, "a draw is not covered by a reservation"
    _check_same([draw for _, draw in seen.draws], stated(stage.events, relation), "the certificate")
    cost = epsilon(stage.events, delta=stage.delta, relation=relation)
    assert abs(cost - entry.epsilon) < 1e-3 * cost, f"epsilon {cost} is charged as {entry.epsilon}"
    return stage


def _check_same(drawn: Sequence[Draw], states: Sequence[Draw], what: str) -> None:
    for kind in ("choice", "release"):
        made = sorted(value for one, value in drawn if one == kind)
        said = sorted(value for one, value in states if one == kind)
        assert len(made) == len(said), f"{what} states {len(said)} {kind}s, {len(made)} were drawn"
        np.testing.assert_allclose(made, said, rtol=1e-9, err_msg=f"{what}: scales of {kind}s")


KINDS = {
    "marginals": ["discrete_gaussian", "bounded_range", "discrete_gaussian"],
    "correlations": ["discrete_gaussian"] * 2 + ["bounded_range", "discrete_gaussian"],
    "pgm": ["discrete_gaussian"] * 2,
    "privsyn": ["discrete_gaussian"] * 3,
}
"""Of the events of each method's stage; of marginals with correlations, too."""


def gate_certified_draws(
    folder: Path, method: str = "marginals", *, kinds_of: str | None = None, **changes: Any
) -> None:
    """Number, deviation and scale of all draws of a run are what its certificate states.

    Args:
        folder: for the run.
        method: that runs.
        kinds_of: of `KINDS`, where those are not the method's.
        changes: of its configuration.
    """
    place = Intake(folder, method=method).budget()
    with pytest.MonkeyPatch.context() as patch, watched(place.ledger) as seen:
        patch.setattr(belief, "estimated", chained)
        result = place.run(key=None, **changes)
        stage = check_certified(place, result, seen)
        kinds = [event.kind for event in stage.events for _ in range(min(event.count, 2))]
        found = [event.kind for event in stage.events]
        assert KINDS[kinds_of or method] in (kinds, found), f"{found} are certified"
        check_released(place, result, seen)


def gate_certified_correlations(folder: Path) -> None:
    """The same of a run that measures correlations."""
    gate_certified_draws(folder, kinds_of="correlations", training__correlations_share=0.2)


def check_released(place: Intake, result: RunResult, seen: Seen) -> None:
    """What the checkpoint keeps is what was drawn, and no file holds a raw sum."""
    known = {noisy.tobytes() for noisy, _ in seen.noisy}
    raw = [given for _, given in seen.noisy] + seen.raw
    secrets = {one.tobytes() for one in raw if one.size > 3 and np.count_nonzero(one) > 2}
    secrets |= {one.astype(np.float64).tobytes() for one in raw if np.count_nonzero(one) > 2}
    secrets |= {np.array(one.sum()).tobytes() for one in raw if one.size > 3 and one.sum()}
    assert len(secrets) > 20
    found = 0
    folders = [result.directory.path, place.store.root / str(result.released)]
    for path in (file for one in folders for file in one.rglob("*") if file.is_file()):
        if "private" in path.relative_to(place.folder).parts[1:-1]:
            continue
        content = path.read_bytes()
        found += sum(one in content for one in known)
        held = [one for one in secrets if one in content]
        assert not held, f"{path.name} holds exact counts of real rows"
    assert found == len(known), "the checkpoint lacks what was released"


def _scores(rows: Transitions | None) -> list[int]:
    """Return the scores of a program that has released columns of 48 units, all cells alike."""
    columns, chooser = few_columns(), Chooses()
    made = program_of(columns, plan_of(columns, epsilon=10.0), chooser, rows=2000)
    tensors = released_columns(columns, units=48, deviation=0.2 * UNIT_WEIGHT)
    noise: Any = Adds()
    resumed(made, tensors).step(1, group(rows, columns), noise, 1)
    return chooser.asked[0][0]


def gate_moved_counts(_: Path) -> None:
    """A unit moves what is counted, and what is scored, by what is charged at most."""
    columns, relation = few_columns(), Relation.REPLACE_WITH_NULL
    bound = integer_sensitivity(relation)
    plan = plan_of(columns, epsilon=10.0)
    first = plan.releases[0].columns
    assert first is not None
    for rows, cap in ((1, 1), (1, 2), (3, 1), (7, 2), (1000, 10)):
        data = steps_of([B] * rows, [0] * rows)
        moved = float(np.linalg.norm(column_counts(data, columns, cap=cap))) / UNIT_WEIGHT
        charged = first.sensitivity / UNIT_WEIGHT
        assert moved <= charged, f"{rows} rows move columns by {moved:.3f}, {charged:.3f} charged"
        moved = float(np.linalg.norm(joint_counts(data, columns, (0, 1), cap=cap))) / bound
        assert moved <= 1, f"{rows} rows move a joint count by {moved:.3f}"
    scores = [_scores(rows) for rows in (steps_of([B]), None)]
    moves = [0, *(x - y for x, y in zip(*scores, strict=True))]
    moved = (max(moves) - min(moves)) / score_span(relation)
    assert moved <= 1, f"a unit moves scores by {moved:.3f} of what is charged"
    assert moved > 0.6, f"a unit moves scores by {moved:.3f} of what is charged alone"


def gate_moved_correlations(_: Path) -> None:
    """A unit, whatever its rows are, moves the sums of answers by what is charged at most."""
    columns = few_columns()
    bins = [np.arange(size) for size in columns.sizes]
    shapes = [
        ColumnShape(np.ones(size), np.arange(size), np.ones(size), 0.0, np.empty(0))
        for size in columns.sizes
    ]
    asked = {"bins": bins, "questions": questions_of(columns, shapes)}
    for relation, times in ((Relation.REPLACE_WITH_NULL, 1), (Relation.REPLACE_ONE, 2)):
        plan = plan_of(columns, relation=relation.value, epsilon=10.0, correlations_share=0.2)
        vector = plan.releases[1].vector
        assert vector is not None
        charged, reached = vector.sensitivity / UNIT_WEIGHT, 0.0
        for rows, cap in ((1, 1), (1, 2), (3, 1), (7, 2), (1000, 10)):
            one, other = (
                np.sum(group(data, columns, cap=cap, workers=2).call("correlations", asked), axis=0)
                for data in (
                    steps_of([B] * rows, [0] * rows),
                    None if times == 1 else steps_of([OPPOSITE] * rows, [0] * rows),
                )
            )
            moved = float(np.linalg.norm(one - other)) / UNIT_WEIGHT
            assert moved <= charged, (
                f"{rows} rows move correlations by {moved:.3f}, {charged:.3f} charged"
            )
            reached = max(reached, moved / charged)
        assert reached > 0.8, f"a unit moves correlations by {reached:.3f} of what is charged alone"


def gate_bins_from_what_was_released(_: Path) -> None:
    """Bins, parts and candidates, and all else that is kept, follow from noisy counts.

    One value alone, and rows that are scattered over all values, have the same where the noisy
    counts are the same.
    """
    source = np.random.default_rng(0)
    scattered = zip(
        *(source.integers(0, top, 2000).tolist() for top in (41, 2, 21, 41, 2)), strict=True
    )
    rows = [(s, a, r / 20, z, bool(ended)) for s, a, r, z, ended in scattered]
    alike = [(0.0, 0, 0.0, 0.0, False)] * 4
    for as_released in (True, False):
        runs = [whole_run(steps_of(some), as_released=as_released) for some in (alike, rows)]
        one, other = (run.decided() for run in runs)
        for what in one:
            assert one[what] == other[what], f"exact counts decide on {what}"
    assert runs[0].kinds == {0, *CUTS}, f"candidates have parts {sorted(runs[0].kinds)} alone"
