"""Gaps and levels over neighbouring datasets, on the assembled path from the store to the release.

Persons are made for the worst case: flags that say neither, numbers that are none, numbers beyond
the bounds, nobody measured, one row alone, more rows than the cap, twins.
"""

import logging
import warnings
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.experiments import judging
from distributed_privrl.marginals import belief, cleaning
from distributed_privrl.marginals.asked import levels_asked
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.plan import integer_sensitivity
from distributed_privrl.privacy.quantiles import UNIT_WEIGHT
from distributed_privrl.privacy.units import Relation
from tests.marginals.answers import Answers, moved
from tests.marginals.programs import Chooses, chained, plan_of, program_of
from tests.methods.marginals.clinic import (
    MAX_LENGTH,
    OTHERS,
    PEOPLE,
    WORST,
    Clinic,
    left,
)


def counts_of(place: Clinic, columns: TableColumns, **options: Any) -> list[NDArray[np.int64]]:
    """Return all columns, and joint counts of all pairs and of some triples, over all cells."""
    workers = place.group(columns, **options)
    bins = [np.arange(size) // max(1, size // 12) for size in columns.sizes]
    cliques = [*combinations(range(len(columns)), 2)]
    cliques += [(*one, len(columns) - 1) for one in levels_asked(columns)]
    tables = workers.call("tables", {"bins": bins, "cliques": cliques})
    found = [np.sum([one[i] for one in tables], axis=0) for i in range(len(cliques))]
    return [np.sum(workers.call("columns"), axis=0), *found]


def histograms(columns: TableColumns, counts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return each histogram of the columns by itself."""
    sizes: list[int] = []
    for one in columns.columns:
        if one.counted:
            sizes += [one.size, one.counted - one.size] if one.counted > one.size else [one.size]
    sizes += [columns.lengths] if columns.lengths else []
    assert len(sizes) == columns.histograms
    assert sum(sizes) == len(counts)
    return np.split(counts, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize(
    ("coding", "layout", "cap"),
    [
        ("absolute", "packed", MAX_LENGTH),
        ("difference", "packed", MAX_LENGTH),
        ("auto", "packed", MAX_LENGTH),
        ("auto", "episodes", None),
    ],
)
def test_nobody_moves_a_count_of_gaps_and_levels_by_more_than_a_unit(
    coding: str, layout: str, cap: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = dict[str, list[NDArray[np.int64]]]()
    with (
        warnings.catch_warnings(),
        np.errstate(all="raise"),
        caplog.at_level(logging.DEBUG, "distributed_privrl"),
    ):
        warnings.simplefilter("error", RuntimeWarning)
        for name, rows in ({"": None} | PEOPLE | {"worst": WORST}).items():
            people = [OTHERS] if rows is None else [rows, OTHERS]
            place = Clinic(tmp_path / "place", *people, layout=layout)
            columns = place.columns(place.config(model={"next_observation": coding}))
            caplog.clear()
            found[name] = counts_of(place, columns, cap=cap)
            assert not caplog.records, name
    assert len(columns.of("memory")) == 4
    unit = integer_sensitivity(Relation.REPLACE_WITH_NULL)
    assert unit == UNIT_WEIGHT
    most = 0.0
    for name in PEOPLE:
        (all_columns, *tables), (nobody, *without) = found[name], found[""]
        apart = [
            moved("L1", one, other)
            for one, other in zip(
                [*histograms(columns, all_columns), *tables],
                [*histograms(columns, nobody), *without],
                strict=True,
            )
        ]
        assert max(apart) <= UNIT_WEIGHT, name
        assert moved("L2", all_columns, nobody) <= unit * columns.histograms**0.5, name
        most = max(most, *apart)
    assert most > 0.99 * UNIT_WEIGHT
    one_unit = integer_sensitivity(Relation.REPLACE_ONE)
    for one, other in combinations(found, 2):
        shares = [moved("L2", x, y) for x, y in zip(found[one], found[other], strict=True)]
        assert shares[0] <= one_unit * columns.histograms**0.5, (one, other)
        assert max(shares[1:]) <= one_unit, (one, other)
    for x, y in zip(found["nothing proper"], found[""], strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("layout", ["packed", "episodes"])
def test_counts_do_not_depend_on_workers_or_layout(layout: str, tmp_path: Path) -> None:
    twin = replace(WORST, unit_ids=np.full_like(WORST.unit_ids, 2))
    place = Clinic(tmp_path / "place", WORST, OTHERS, twin, layout=layout)
    columns = place.columns()
    one, *more = (counts_of(place, columns, workers=workers) for workers in (1, 2, 4))
    single = Clinic(tmp_path / "single", WORST, OTHERS)
    alone = Clinic(tmp_path / "alone", OTHERS)
    own = [counts_of(of, columns) for of in (single, alone)]
    for place_, first in enumerate(one):
        for other in more:
            np.testing.assert_array_equal(other[place_], first)
        with_one, without = (counts[place_] for counts in own)
        np.testing.assert_array_equal(first - with_one, with_one - without)  # twins are alike


@pytest.mark.parametrize("public", [False, True])
def test_gaps_and_levels_are_told_by_released_counts_alone(
    public: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No byte that may leave differs where the noisy answers do not."""
    monkeypatch.setattr(belief, "estimated", chained)
    monkeypatch.setattr(cleaning, "_TRIALS", 0)
    monkeypatch.setattr(judging, "write_reports", lambda *_, **__: None)
    answers = Answers(seed=0)
    answers.plant(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        files, nobody, place = left(tmp_path / "place", answers, None, public=public)
        assert nobody[0][1] == files["events"][0].sensitivity
        assert [one[0] for one in nobody[1:3]] == ["L2", "L2"], "levels, which nobody chose"
        assert len(nobody[0][2]) == sum(place.columns().counted)
        (made,) = place.store.iter_trajectories("clinic/private-v0", unit="trajectory")
        assert made.observations.shape[1] == 5
        assert set(np.unique(made.observations[:, 2])) <= {0.0, 1.0}
        theirs, asked, _ = left(tmp_path / "place", answers, WORST, public=public)
    assert theirs.keys() == files.keys()
    changed = [one for one, content in files.items() if theirs[one] != content]
    assert not changed, f"{changed} tell of exact counts"
    for (kind, charged, x), (*same, y) in zip(nobody, asked, strict=True):
        assert same == [kind, charged]
        assert 0 < moved(kind, x, y) <= charged, kind


def test_a_resume_with_other_levels_or_gaps_is_refused(tmp_path: Path) -> None:
    place = Clinic(tmp_path / "place", OTHERS)
    columns = place.columns()
    plan = plan_of(columns, steps=2, tables=2, epsilon=None)

    def program(of: TableColumns) -> Any:
        return program_of(of, plan, Chooses(), rows=300, most_bins=6, asked=levels_asked(of))

    made = program(columns)
    made.step(0, place.group(columns), None)
    program(columns).restore(made.tensors(), 1)
    others = [
        place.columns(place.config(model={"memory": names})) for names in ([], ["hdl"], ["pulse"])
    ]
    plain = [
        replace(one, cells=replace(one.cells, gaps=False)) if one.cells and one.gaps else one
        for one in columns.columns
    ]
    others.append(replace(columns, columns=tuple(plain)))
    for other in others:
        with pytest.raises(UnsafeError, match="new run"):
            program(other).restore(made.tensors(), 1)
