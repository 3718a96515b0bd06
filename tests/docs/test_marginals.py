"""The figures of marginals are those of the stored benchmarks, on their page and in its note."""

import json
import re
from collections.abc import Sequence
from statistics import median
from typing import Any

from tests.docs.pages import ROOT, said, table_after

PAGES = ("marginals.md", "design/0014-marginals-measured.md")
PAGE = "\n".join((ROOT / "docs" / name).read_text() for name in PAGES)
RESULTS = ROOT / "benchmarks" / "results"
FLEET = {
    "correlation of delay and reward": "correlation of delay and reward",
    "the same, by intervals": "the same, by intervals",
    "flights whose route agrees with their distance": "haul agrees with distance",
    "cancelled": "cancelled",
    "flights a month": "flights a month",
    "worst column": "worst marginal",
    "a classifier's area": "area s, a, s'",
}
MAZES = {
    "at the goal": "at the goal",
    "rewards false": "rewards false",
    "missed": "rewards missed",
    "in walls": "in walls",
    "association gap": "association gap",
    "area s, a, s'": "area s, a, s'",
}


def cells(name: str) -> dict[tuple[str, str], dict[str, Any]]:
    found = json.loads((RESULTS / f"utility_tables_{name}.json").read_text())["cells"]
    return {(cell["table"], cell["cell"]): cell for cell in found}


def runs(cell: dict[str, Any], measure: str) -> list[float]:
    return [figures[measure] for figures in cell["runs"].values()]


def rows_of(start: str) -> list[list[str]]:
    return table_after(PAGE, start)


def with_range(values: Sequence[float]) -> list[float]:
    return [median(values), min(values), max(values)]


def test_the_fleet_s_table_is_the_stored_one() -> None:
    stored = cells("fleet_tails")
    _, _, *rows = rows_of("The fleet of `tune_configs")
    checked = 0
    for label, real, *shown in rows:
        measure = next((m for name, m in FLEET.items() if label.startswith(name)), None)
        if measure is None:
            assert label == "CPU seconds of the run"
            continue
        if real and not measure.startswith("area"):
            assert said(real, *runs(stored["fleet", "real"], measure)), label
        for epsilon, text in zip(("10", "4", "1", "0.5"), shown, strict=False):
            if text:
                values = with_range(runs(stored["fleet", f"marginals, eps {epsilon}"], measure))
                shows_range = "(" in text
                assert said(text, *values[: 3 if shows_range else 1]), (label, epsilon, values)
                checked += 1
    assert checked >= 4 * len(FLEET) - 2


KEPT = {
    "a year of experience a year": "a year of experience a year",
    "schooling stays": "schooling stays",
    "ethnicity stays": "ethnicity stays",
    "columns": "marginal",
    "a classifier's area": "area s, a, s'",
    "a year older": "a year older",
    "association gap": "association gap",
    "people with seven rows": "people with seven rows",
    "men with ten rows": "men with ten rows",
    "correlation of schooling and wage": "correlation of schooling and wage",
}


def _of_table(label: str, table: str) -> tuple[str, str]:
    """Return the table that a line is of, which the first of its lines names, and the measure."""
    before, colon, after = label.partition(": ")
    named, rest = (before, after) if colon else (table, label)
    return named, next(measure for name, measure in KEPT.items() if rest.startswith(name))


def test_what_a_person_keeps_is_as_stored() -> None:
    stored, table = cells("panels_parts"), ""
    _, _, *rows = rows_of("People who are asked year after year")
    for label, _, _, *shown in rows:
        table, measure = _of_table(label, table)
        for name, text in zip((table, f"{table}_lasting"), shown, strict=True):
            values = with_range(runs(stored[name, "marginals, eps 1"], measure))
            assert said(text, *values[: 3 if "(" in text else 1]), (name, measure, values)


def test_whole_trajectories_of_people_are_as_stored() -> None:
    stored, table = cells("panels_divisions"), ""
    _, _, *rows = rows_of("Whole trajectories by `marginals_j`: `jobs`")
    for label, real, *shown in rows:
        table, measure = _of_table(label, table)
        fresh = re.search(r"\((\.\d+)\)", label)
        if fresh:
            half = median(runs(stored[table, "fresh real"], measure))
            assert said(fresh.group(1), half), (table, measure, half)
        elif real:
            assert said(real, *runs(stored[table, "real"], measure)), (table, measure)
        for epsilon, text in zip(("10", "4", "1", "0.5"), shown, strict=True):
            values = with_range(runs(stored[table, f"marginals_j, eps {epsilon}"], measure))
            assert said(text, *values), (table, measure, epsilon, values)


def test_the_mazes_table_is_the_stored_one() -> None:
    stored = cells("mazes")
    header, _, *rows = rows_of("Mazes with rewards in few rows")
    assert header[2:8] == list(MAZES)
    table = ""
    for label, epsilon, *shown in rows:
        if "real rows" in label:
            table = label.split(",")[0]
            continue
        method = label.strip("`") if label.startswith("`") else "hybrid"
        budget = f"eps {epsilon.replace('.5', '0.5')}" if epsilon != "none" else "no privacy"
        cell = stored[table, f"{method}, {budget}"]
        for measure, text in zip(MAZES.values(), shown, strict=False):
            value = median(runs(cell, measure))
            assert said(text, value), (table, label, epsilon, measure, value)


def test_where_the_hybrid_is_worse_than_rounds_alone_is_as_stored() -> None:
    """Far from the real share at the goal, or larger where less is better."""
    stored, worse = cells("mazes"), set()
    for (table, cell), found in stored.items():
        if not cell.startswith("hybrid"):
            continue
        rounds = stored[table, cell.replace("hybrid", "privorl_ar")]
        (real,) = runs(stored[table, "real"], "at the goal")
        for measure in MAZES:
            of = MAZES[measure]
            values = [median(runs(one, of)) for one in (found, rounds)]
            if of == "at the goal":
                values = [abs(value - real) for value in values]
            if values[0] > values[1]:
                worse.add((table, cell, of))
    assert worse == {
        ("large", "hybrid, eps 4", "at the goal"),
        ("umaze", "hybrid, eps 0.5", "at the goal"),
        ("large", "hybrid, eps 0.5", "rewards false"),
        ("large", "hybrid, eps 0.5", "rewards missed"),
    }
    assert "in all of these places but one, large at .5, where nearly all" in PAGE
    assert "at the goal in large at 4 and in umaze at .5." in PAGE


def test_what_is_said_of_stays_and_months_is_as_stored() -> None:
    stays, planes = cells("sepsis"), cells("fleet_j")
    values = [
        median(runs(stays["icu_sepsis", f"marginals, eps {epsilon}"], "exact value"))
        for epsilon in ("10", "4", "1", "0.5")
    ]
    ten, four, one, half = (f"{value:.3f}"[1:] for value in values)
    said = f"is worth {ten} at epsilon 10, {four} at 4, {one} at 1 and {half} at .5, exactly"
    assert said in PAGE
    told = PAGE.partition("utility_tables_fleet_j.md`)")[2].partition("Before [lengths told]")[0]
    for epsilon in ("4", "1"):
        months = planes["fleet", f"marginals_j, eps {epsilon}"]
        median_flights, least, most = with_range(runs(months, "flights a month"))
        assert f"{median_flights:.1f} flights ({least:.1f} .. {most:.1f})" in told
        values = with_range(runs(months, "correlation of delay and reward"))
        shown = [f"{value:.2f}".replace("-0.", "-.") for value in values]
        assert f"correlation {shown[0]} ({shown[1]} .. {shown[2]})" in told, epsilon
        for measure, digits in (("area s, a, s'", 2), ("association gap", 3)):
            value = f"{median(runs(months, measure)):.{digits}f}".removeprefix("0")
            assert f"{measure.split()[0]} {value}" in told or f"gap {value}" in told, measure


def test_what_the_page_says_in_short_is_as_stored() -> None:
    page = (ROOT / "docs" / PAGES[0]).read_text().partition("## How good")[2]
    planes, mazes, panels = cells("fleet_j"), cells("mazes"), cells("panels_parts")
    for epsilon in ("4", "1"):
        months = planes["fleet", f"marginals_j, eps {epsilon}"]
        flights = [f"{one:.1f}" for one in with_range(runs(months, "flights a month"))]
        assert f"{flights[0]} ({flights[1]} .. {flights[2]})" in page
        values = with_range(runs(months, "correlation of delay and reward"))
        shown = [f"{one:.2f}".replace("-0.", "-.") for one in values]
        assert f"{shown[0]} ({shown[1]} .. {shown[2]})" in page
    shares = [
        [
            f"{100 * median(runs(mazes['umaze', f'{method}, eps {epsilon}'], measure)):.0f} %"
            for measure in ("rewards false", "rewards missed")
        ]
        for epsilon in ("4", "1")
        for method in ("marginals", "privorl_ar")
    ]
    four, rounds_at_four, one, rounds_at_one = shares
    assert f"{four[0]} are false and {four[1]} are missed by `marginals`" in page
    assert f"{rounds_at_four[0]} and {rounds_at_four[1]} by `privorl_ar`" in page
    assert f"at 1, {one[0]} and {one[1]}, and {' and '.join(rounds_at_one)}." in page
    counted = panels["wages", "marginals, eps 1"]
    stays = 100 * median(runs(counted, "schooling stays"))
    assert f"schooling stays in {stays:.0f} % of the rows" in page
    assert median(runs(counted, "a year of experience a year")) > 0.995


def test_what_the_fleet_s_counts_cost_is_measured() -> None:
    found = json.loads((RESULTS / "fleet_area.json").read_text())["cells"]
    areas = {
        (cell["counted"], cell["noise"], cell["cells with flights"]): f"{cell['area']:.2f}"[1:]
        for cell in found
    }
    two, three = "route and hour, route and distance", "all three pairs"
    assert f"have an area of {areas[two, 'marginals', '-']} by hour" in PAGE
    assert f"as all three pairs {areas[three, 'marginals', '-']}." in PAGE
    assert f"of any other column, it is {areas[two, 'all of epsilon', '-']}." in PAGE
    assert f"it would be {areas[two, 'marginals', 'known']} with the noise" in PAGE


def test_misses_of_the_readme_are_those_of_the_stored_tables() -> None:
    missed = (ROOT / "README.md").read_text().split("## What is missed")[1].split("\n## ")[0]
    fleet, months = cells("fleet_tails"), cells("fleet_j")
    four, one = (fleet["fleet", f"marginals, eps {epsilon}"] for epsilon in ("4", "1"))
    area = median(runs(four, "area s, a, s'"))
    measure, agree = "correlation of delay and reward", "haul agrees with distance"
    worst = max(runs(four, measure))
    at_four, at_one = (months["fleet", f"marginals_j, eps {epsilon}"] for epsilon in ("4", "1"))
    shown = [f"{max(runs(one, measure)):.2f}".replace("-0.", "-.") for one in (at_four, at_one)]
    assert "an area of {} where".format(f"{area:.2f}"[1:]) in missed
    assert f"one draw of three has a correlation of {worst:.2f}".replace("-0.", "-.") in missed
    assert f"months at 4 one has {shown[0]}, and at 1 one has {shown[1]} where" in missed
    for found in (four, at_four):
        assert median(runs(found, measure)) <= -0.85, "the median meets the aim"
        assert median(runs(found, agree)) >= 0.95
        assert abs(median(runs(found, "flights a month")) - 8.8) <= 0.88
    for found in (one, at_one):
        assert median(runs(found, measure)) <= -0.75, "the aims at 1 are met by medians"
        assert median(runs(found, agree)) >= 0.9
    assert abs(median(runs(four, "cancelled")) / 0.0172 - 1) <= 0.15
    assert float(four["cpu s"].split()[0]) < 60


def test_today_s_whole_trajectories_are_as_stored() -> None:
    stored = cells("panels_lengths")
    told = PAGE.partition("utility_tables_panels_lengths.md`")[2].partition("The version")[0]
    for measure, table in (
        ("correlation of schooling and wage", "jobs"),
        ("area s, a, s'", "jobs"),
        ("marginal", "jobs"),
        ("association gap", "jobs"),
        ("area s, a, s'", "labour"),
        ("association gap", "labour"),
    ):
        digits = 3 if measure == "association gap" else 2
        for epsilon in ("4", "1"):
            values = with_range(runs(stored[table, f"marginals_j, eps {epsilon}"], measure))
            shown = [f"{value:.{digits}f}".replace("0.", ".", 1) for value in values]
            assert f"{shown[0]} ({shown[1]} .. {shown[2]})" in told, (table, measure, epsilon)


def test_how_near_weights_of_numbers_come_is_as_stored() -> None:
    found = json.loads((RESULTS / "column_tails.json").read_text())["ratios"]
    noises = ("1.5", "5", "13", "40")
    nearer = [100 * (1 - found[f"marginals / total unknown, noise {one}"]) for one in noises]
    cut = [found[f"marginals / cells, cut at 0, noise {one}"] for one in noises]
    told = (ROOT / "docs" / "design" / "0012-parts-of-numbers.md").read_text()
    assert f"columns are {min(nearer):.0f} to {max(nearer):.0f} % nearer than where the" in told
    assert f"at {min(cut):.2f} to {max(cut):.2f} of the".replace("0.", ".") in told
