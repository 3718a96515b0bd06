"""The public report's measures: declared, charged once, within what a unit may move."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.evaluation import plots
from distributed_privrl.experiments.measures_report import Floor, distance
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.marginals import belief
from distributed_privrl.methods.marginals.method import MarginalsMethod
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages import measuring
from distributed_privrl.stages.asked_measures import noise_of_measures
from distributed_privrl.stages.measuring import Measures, measures_of, unit_weighted_counts
from tests.marginals.programs import chained
from tests.worlds.intake import DATASET, Intake, admission_store, admissions, write

ASKED: dict[str, Any] = {
    "epsilon": 1.0,
    "pairs": [["observation_0", "reward"], ["action", "next_observation_1"]],
    "events": [
        {"column": "terminal", "value": True},
        {"column": "observation_0", "at_least": 3.0},
    ],
}


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return admission_store(tmp_path_factory.mktemp("intake") / "datasets")


@pytest.fixture
def place(tmp_path: Path, master: Any, monkeypatch: pytest.MonkeyPatch) -> Intake:
    """Return a world whose runs leave the estimation of their rows' model out."""
    monkeypatch.setattr(belief, "estimated", chained)
    made = Intake(tmp_path, master)
    made.budget()
    return made


def measures(place: Intake, **changes: Any) -> Measures:
    found = measures_of(place.config(evaluation__measures=ASKED | changes), place.store)
    assert found is not None
    return found


def exact(place: Intake, dataset: str, unit: str = "patient", **changes: Any) -> Any:
    data = place.config(data__sensitive=dataset, data__unit=unit).data
    return unit_weighted_counts(measures(place, **changes), data, place.store)


def person(number: int, rows: int, *, value: float, end: bool = False) -> Transitions:
    """Return rows of one patient, all in one cell of each histogram."""
    numbers = np.full((rows, 2), value, np.float32)
    return Transitions(
        observations=numbers,
        actions=np.full(rows, 1),
        rewards=np.full(rows, value, np.float32),
        next_observations=numbers,
        terminated=np.full(rows, end),
        truncated=np.zeros(rows, bool),
        unit_ids=np.full(rows, number, np.uint64),
    )


WORST: dict[str, Transitions] = {
    "one row": person(10**6, 1, value=0.0),
    "many rows in one cell": person(10**6, 4096, value=0.0),
    "a number of rows that divides nothing": person(10**6, 1237, value=9.0, end=True),
    "nothing finite": person(10**6, 33, value=float("nan")),
    "far outside": person(10**6, 65, value=float("inf")),
    "a category that is none": replace(person(10**6, 7, value=1.0), actions=np.full(7, 99)),
}


@pytest.mark.parametrize("worst", WORST)
def test_no_unit_moves_the_counts_by_more_than_is_charged(place: Intake, worst: str) -> None:
    """Somebody comes, or becomes somebody else: whatever rows there are."""
    others = admissions()
    written = {
        "without": others,
        "with": Transitions.concatenate([others, WORST[worst]]),
        "another": Transitions.concatenate([others, person(10**6, 5, value=5.0)]),
    }
    for name, rows in written.items():
        write(place.store, f"intake/{name}-v0", rows)
    counts = {name: exact(place, f"intake/{name}-v0") for name in written}
    found = measures(place)
    moved = np.abs(counts["with"] - counts["without"]).sum()
    assert moved <= found.release(Relation.ADD_OR_REMOVE).sensitivity
    assert moved <= found.release(Relation.REPLACE_WITH_NULL).sensitivity
    exchanged = np.abs(counts["with"] - counts["another"]).sum()
    assert exchanged <= found.release(Relation.REPLACE_ONE).sensitivity
    if worst == "one row":
        assert moved == len(found.histograms) * UNIT_WEIGHT, "not the worst case"
    rows = np.array([part.sum() for part in found.parts(counts["with"])])
    assert (rows == rows[0]).all(), "a row is in one cell of each histogram"


@pytest.mark.parametrize("relation", ["replace_one", "add_or_remove", "replace_with_null"])
def test_a_plan_says_the_noise_that_is_drawn(place: Intake, relation: str) -> None:
    config = place.config(evaluation__measures=ASKED, privacy__relation=relation)
    found = measures_of(config, place.store)
    assert found is not None
    drawn = found.release(Relation(relation)).scale / UNIT_WEIGHT
    assert noise_of_measures(config) == pytest.approx(drawn)
    assert noise_of_measures(place.config()) is None


def test_the_report_tells_distances_and_events_and_is_paid_for(place: Intake) -> None:
    result = place.run(key=None, evaluation__measures=ASKED, training__tables=1)
    (stage,) = [one for one in result.certificate.stages if one.name == "measures"]
    (event,) = stage.events
    assert event.kind == "discrete_laplace"
    assert event.sensitivity == 4 * UNIT_WEIGHT
    assert result.certificate.epsilon is not None
    assert result.certificate.epsilon <= 4.0
    entry = next(one for one in place.ledger.entries() if one.id.endswith("/measures"))
    assert entry.epsilon == 1.0
    assert entry.id in result.certificate.ledger_entries
    report = json.loads((result.directory.path / "report.json").read_text())
    told = next(one for one in report["sections"] if one["title"].startswith("How near"))
    named = {one["name"]: one for one in told["metrics"]}
    pair = named["observation_0 with reward: distance"]
    assert 0 <= pair["value"] <= 1
    assert (
        0
        < pair["reference"]
        < named["observation_0 with reward: noise and chance make up to"]["value"]
    )
    assert "terminal is True: share" in named
    assert told["figures"], "the pairs are not drawn"
    before = place.ledger.entries()
    rebuild_report(result.directory.path, store=place.store, ledger_url=place.url)
    again = json.loads((result.directory.path / "report.json").read_text())
    assert again["sections"] == report["sections"], "a second draw, or another simulation"
    assert place.ledger.entries() == before


def test_a_resume_draws_no_second_noise(place: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    class StoppedError(Exception):
        pass

    def stops(*_: Any, **__: Any) -> None:
        raise StoppedError

    with monkeypatch.context() as patch:
        patch.setattr(MarginalsMethod, "work", stops)
        with pytest.raises(StoppedError):
            place.run(key=None, evaluation__measures=ASKED)
    (entry,) = [one for one in place.ledger.entries() if one.kind == "release"]
    drawn = place.ledger.answer(entry.id)

    def refuses(*_: Any) -> None:
        raise AssertionError("drawn again")

    monkeypatch.setattr(measuring, "unit_weighted_counts", refuses)
    monkeypatch.setattr(plots, "render", lambda *_: b"<svg/>")
    result = place.run(key=None, evaluation__measures=ASKED, resume=True)
    assert result.certificate.status == "valid"
    assert place.ledger.answer(entry.id) == drawn


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pairs": [["observation_0", "nobody"]]}, "no column is called 'nobody': there are obs"),
        ({"events": [{"column": "action", "value": 17}]}, "action cannot be 17: 1, 2, 3"),
        ({"events": [{"column": "action", "below": 2}]}, "is a category: name an event's value"),
        ({"events": [{"column": "reward", "value": 1}]}, "is a number: name at_least or below"),
        ({"edges": {"reward": [1.0, 0.0]}}, "must be finite and rise"),
        ({"edges": {"action": [1.0]}}, "edges of action: no number is called so"),
        ({"epsilon": 4.0}, "epsilon"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_held(
    place: Intake, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        place.run(key=None, evaluation__measures=ASKED | changes)
    assert place.ledger.entries() == []
    assert place.ledger.holds() == []


def check_charge(place: Intake, name: str) -> None:
    """Check that the noise is that of what one unit moves, and that it is charged as such."""
    write(place.store, name, Transitions.concatenate([admissions(), WORST["one row"]]))
    found = measures(place)
    moved = int(np.abs(exact(place, name) - exact(place, DATASET)).sum())
    release = found.release(Relation.ADD_OR_REMOVE)
    assert release.sensitivity >= moved, "a unit moves more than is charged"
    assert release.event.parameter * moved <= found.asked.epsilon, "charged for less noise"


def weights_above_one(patch: pytest.MonkeyPatch) -> None:
    """Each row of a unit weighs one."""
    patch.setattr(
        measuring, "weights_of_rows", lambda *_: lambda ids: np.full(len(ids), 2 * UNIT_WEIGHT)
    )


def one_histogram_charged(patch: pytest.MonkeyPatch) -> None:
    """The vector of all histograms costs as much as one of them."""
    right = measuring.integer_laplace_release
    patch.setattr(
        measuring,
        "integer_laplace_release",
        lambda *, epsilon, sensitivity: right(epsilon=epsilon, sensitivity=UNIT_WEIGHT),
    )


@pytest.mark.parametrize("bug", [weights_above_one, one_histogram_charged])
def test_planted_bugs_are_seen(
    place: Intake, bug: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    check_charge(place, "intake/right-v0")
    bug(monkeypatch)
    with pytest.raises(AssertionError, match="more than is charged"):
        check_charge(place, "intake/wrong-v0")


def test_measures_that_are_drawn_and_not_charged_are_refused(
    place: Intake, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distributed_privrl.stages import asked_measures

    right = asked_measures.first_measures

    def cheap(config: Any) -> Any:
        return tuple(replace(one, epsilon=one.epsilon / 2) for one in right(config))

    monkeypatch.setattr("distributed_privrl.stages.method.first_measures", cheap)
    with pytest.raises(UnsafeError, match=r"measures would release epsilon 1 and be charged 0\.5"):
        place.run(key=None, evaluation__measures=ASKED)


def test_a_floor_is_what_two_samples_of_one_distribution_differ_by() -> None:
    random = np.random.default_rng(1)
    likely = random.dirichlet(np.ones(12))
    floor = Floor(units=2000, scale=8.0, seed=3)
    found = floor.distances(likely * 5000)
    real = random.multinomial(2000, likely) + random.laplace(scale=8.0, size=12)
    own = distance(real, random.multinomial(5000, likely).astype(float))
    assert np.quantile(found, 0.001) <= own <= np.quantile(found, 0.999)
    apart = distance(real, random.multinomial(5000, likely[::-1]).astype(float))
    assert apart > found.max()


def test_a_policy_has_no_rows_to_measure(tmp_path: Path) -> None:
    from distributed_privrl.core.config import RunConfig
    from distributed_privrl.core.yaml_files import read_yaml
    from distributed_privrl.experiments.registry import plan_run
    from tests.worlds.overrides import changed, parsed

    values = read_yaml(Path("tune_configs/primorl_pendulum.yaml"))
    config = parsed(changed(values, {"evaluation__measures": ASKED}), RunConfig)
    with pytest.raises(ConfigError, match=r"evaluation.measures tell how near released rows are"):
        plan_run(config)
