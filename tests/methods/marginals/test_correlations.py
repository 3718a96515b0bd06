"""Correlations of all pairs on the assembled path: what is charged, and what it is good for."""

import re
import warnings
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.experiments import judging
from distributed_privrl.experiments.counted_section import CORRELATED, FOLLOWS
from distributed_privrl.marginals import belief, cleaning, rollout
from distributed_privrl.marginals.correlations import correlation_sensitivity, most_sums
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from tests.marginals.answers import Answers, moved
from tests.marginals.programs import chained
from tests.methods.marginals.clinic import (
    DOSE,
    HIGH,
    LONGEST,
    MAX_LENGTH,
    OTHERS,
    PEOPLE,
    WORST,
    Clinic,
    left,
    stays,
)

TRAINING = {
    "steps": 1,
    "tables": 4,
    "correlations_share": 0.2,
    "sampling": {"max_length": LONGEST},
}


class Correlated(Clinic):
    """The same clinic, whose runs measure correlations and know no level."""

    def config(self, **changes: Any) -> Any:
        model = {"memory": []} | changes.pop("model", {})
        return super().config(**{"training": TRAINING, "model": model} | changes)


def sums_of(place: Clinic, workers: int = 1, cap: Any = MAX_LENGTH) -> Any:
    """Return the exact sums of answers, by public halves of all columns."""
    from distributed_privrl.marginals.correlations import questions_of
    from tests.marginals.halves import shapes_of

    columns = place.columns()
    asked = questions_of(columns, shapes_of(columns))
    bins = [np.arange(size) for size in columns.sizes]
    answers = place.group(columns, workers, cap).call(
        "correlations", {"bins": bins, "questions": asked}
    )
    return np.sum(answers, axis=0, dtype=np.int64), columns


def test_nobody_moves_correlations_by_more_than_is_charged(tmp_path: Path) -> None:
    found, everybody = {}, PEOPLE | {"the same": stays([([HIGH] * 2, False, DOSE, 1)] * 9)}
    with warnings.catch_warnings(), np.errstate(all="raise"):
        warnings.simplefilter("error", RuntimeWarning)
        for name, rows in ({"": None} | everybody | {"worst": WORST}).items():
            people = [OTHERS] if rows is None else [rows, OTHERS]
            found[name], columns = sums_of(Correlated(tmp_path / "place", *people))
    pairs = most_sums(columns)
    assert len(found[""]) <= pairs
    apart = [moved("L2", found[name], found[""]) for name in everybody]
    assert max(apart) <= correlation_sensitivity(Relation.REPLACE_WITH_NULL, pairs)
    assert max(np.abs(found[name] - found[""]).max() for name in everybody) <= UNIT_WEIGHT
    assert max(apart) > 0.99 * UNIT_WEIGHT * len(found[""]) ** 0.5
    for one, other in combinations(found, 2):
        bound = correlation_sensitivity(Relation.REPLACE_ONE, pairs)
        assert moved("L2", found[one], found[other]) <= bound
    np.testing.assert_array_equal(found["nothing proper"], found[""])


def test_sums_do_not_depend_on_workers_or_layout(tmp_path: Path) -> None:
    found = [
        sums_of(Correlated(tmp_path / layout, WORST, OTHERS, layout=layout), workers)[0]
        for layout in ("packed", "episodes")
        for workers in (1, 2, 4)
    ]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


def test_what_leaves_is_told_by_released_sums_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte that may leave differs where the noisy answers do not; each is as is charged."""
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    monkeypatch.setattr(rollout, "_TRIAL", 200)
    monkeypatch.setattr("tests.methods.marginals.clinic.Clinic", Correlated)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    files, nobody, place = left(tmp_path / "place", answers, None)
    theirs, asked, _ = left(tmp_path / "place", answers, WORST)
    assert theirs.keys() == files.keys()
    changed = [one for one, content in files.items() if theirs[one] != content]
    assert not changed, f"{changed} tell of exact sums"
    kinds = [one.kind for one in files["events"]]
    assert kinds[:2] == ["discrete_gaussian", "discrete_gaussian"]
    pairs = most_sums(place.columns())
    charged = correlation_sensitivity(Relation.REPLACE_WITH_NULL, pairs)
    assert files["events"][1].sensitivity == pytest.approx(charged)
    assert nobody[1][1] == pytest.approx(charged)
    assert len(nobody[1][2]) <= pairs
    for (kind, paid, x), (*same, y) in zip(nobody, asked, strict=True):
        assert same == [kind, paid]
        assert 0 < moved(kind, x, y) <= paid, kind


def levels(seed: int, count: int) -> Trajectories:
    """Return stays of people whose pulse goes with what they were tested with, and little else.

    Half of the days have a dose, and what is tested is higher after it.
    """
    source, found = np.random.default_rng(seed), []
    dosed = source.random((count, 4)) < 0.5
    for doses in dosed:
        own = source.normal()
        after = np.append(0.0, np.where(doses, 3.0, -3.0)[:-1])
        hdl = np.clip(np.round(60 + 12 * source.normal(size=4) + 6 * own + after), 10, 110)
        pulse = np.clip(0.5 * own + source.normal(size=4), -4, 4)
        ill = source.random(4) < 0.3
        states = [
            (day, test, 0, beat, sick)
            for day, (test, beat, sick) in enumerate(zip(hdl, pulse, ill, strict=True))
        ]
        found.append(([*states, states[-1]], True, (0.0, 0.0), 0.0))
    rows = stays(found, np.arange(count) + 10)
    actions = np.stack([5 * dosed.ravel(), np.zeros(dosed.size)], axis=1)
    return replace(rows, actions=actions.astype(np.float32))


def pulse_and_hdl(rows: Trajectories) -> float:
    """Return the correlation of the two numbers."""
    steps = rows.transitions("trajectory").observations
    return float(np.corrcoef(steps[:, 1], steps[:, 3])[0, 1])


def dose_and_next_hdl(rows: Trajectories) -> float:
    """Return the correlation of a dose with what is tested the day after."""
    steps = rows.transitions("trajectory")
    followed = ~(steps.terminated | steps.truncated)
    after = steps.next_observations[followed, 1]
    return float(np.corrcoef(steps.actions[followed, 0], after)[0, 1])


def test_a_weak_relation_that_no_joint_count_is_of_is_kept_and_reported(tmp_path: Path) -> None:
    people = levels(0, 3000)
    made = {}
    for share in (0.2, 0.0):
        place = Correlated(tmp_path / f"place{share:g}", people)
        config = place.config(
            data={
                "sensitive": place.dataset,
                "unit": "patient",
                "units": 3000,
                "max_length": LONGEST,
                "bounds": str(place.bounds),
            },
            training=TRAINING | {"correlations_share": share, "tables": 1},
            model={"memory": [], "rows_per_unit": 4, "bins": 6},
            output={"dataset": "clinic/private-v0", "size": 3000},
            privacy={"epsilon": 8.0, "delta": 1e-5},
        )
        result = place.afford(config).start(config)
        assert result.certificate.status == "valid"
        (rows,) = place.store.iter_trajectories(config.output.dataset, unit="trajectory")
        made[share] = rows
        report = result.directory.report.read_text()
        assert (CORRELATED in report) == bool(share)
        assert (FOLLOWS in report) == bool(share)
        both = r"hdl is [56]\d or more, and pulse is [-.\de]+ or more: 0\.1\d"
        effect = r"dose is [1-5] or more, and next hdl is [56]\d or more: 0\.1\d"
        for told in (both, effect):
            assert (re.search(told, report) is not None) == bool(share), told
    for relation in (pulse_and_hdl, dose_and_next_hdl):
        real = relation(people)
        assert 0.1 < real < 0.25
        assert relation(made[0.2]) > 0.6 * real
        assert abs(relation(made[0.0])) < 0.4 * real
