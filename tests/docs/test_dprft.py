"""The tables of what votes did to a language model are those of the stored benchmarks."""

import json
from statistics import mean
from typing import Any

from tests.docs.pages import ROOT, said, table_after

PAGE = (ROOT / "docs" / "dprft.md").read_text()
NAMES = {
    "private text itself": "private text",
    "public text": "public text",
    "shuffled public words": "shuffled public words",
    "untuned model": "untuned",
    "Aug-PE": "aug_pe",
}
MEASURES = {
    "similarity": 1000,
    "topic": 1000,
    "frechet": 1,
    "nearest sentence": 1,
    "sentence frechet": 1,
    "next token": 1,
}


def stored(name: str) -> list[dict[str, Any]]:
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return list(json.loads(path.read_text())["cells"])


def test_rows_are_means_and_ranges_of_all_seeds() -> None:
    _, _, *rows = table_after(PAGE, "`python -m benchmarks.utility_text`")
    lines = {(one["row"], one["epsilon"]): one for one in stored("utility_text") if one["runs"]}
    shown = {(NAMES.get(label, label.strip("`")), epsilon) for label, epsilon, *_ in rows}
    assert shown == set(lines)
    for label, epsilon, *cells in rows:
        runs = lines[NAMES.get(label, label.strip("`")), epsilon]["runs"].values()
        for text, (measure, scale) in zip(cells, MEASURES.items(), strict=True):
            values = [scale * run["figures"][measure] for run in runs]
            figures = (mean(values), min(values), max(values)) if len(values) > 1 else values
            assert said(text, *figures), (label, epsilon, measure, values)


def test_levers_are_those_of_the_first_seed() -> None:
    _, _, *rows = table_after(PAGE, "Levers, with the first seed")
    lines = {(line["row"], line["lever"]): line for line in stored("text_levers")}
    levers = [lever for row, lever in lines if row == "dp_votes_centred" and lever != "-"]
    named = [label.partition("`")[2].partition("`")[0] for label, *_ in rows]
    assert sorted(named) == sorted(levers)
    for lever, (_, *cells) in zip(named, rows, strict=True):
        figures = lines["dp_votes_centred", lever]["runs"]["0"]["figures"]
        for text, (measure, scale) in zip(cells, MEASURES.items(), strict=True):
            assert said(text, scale * figures[measure]), (lever, measure)
