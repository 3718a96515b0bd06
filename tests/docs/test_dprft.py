"""The table of what votes did to a language model is that of the stored benchmark."""

import json
from statistics import mean

from tests.docs.pages import ROOT, said, table_after

PAGE = (ROOT / "docs" / "dprft.md").read_text()
STORED = json.loads((ROOT / "benchmarks" / "results" / "text_levers.json").read_text())
ROWS = {
    "private text itself": "private text",
    "public text": "public text",
    "untuned model": "untuned",
    "`dp_votes`": "dp_votes",
    "`dp_votes_centred`": "dp_votes_centred",
    "Aug-PE": "aug_pe",
    "`dp_fine_tuning`": "dp_fine_tuning",
}
MEASURES = {"similarity": 1000, "topic": 1000, "frechet": 1, "next token": 1}


def test_rows_are_means_and_ranges_of_all_seeds() -> None:
    _, _, *rows = table_after(PAGE, "`python -m benchmarks.text_levers`")
    assert [label for label, *_ in rows] == list(ROWS)
    lines = {(line["row"], line["lever"]): line for line in STORED["cells"]}
    for label, *shown in rows:
        found = [run["figures"] for run in lines[ROWS[label], "-"]["runs"].values()]
        for text, (measure, scale) in zip(shown, MEASURES.items(), strict=True):
            values = [scale * figures[measure] for figures in found]
            assert said(text, mean(values), min(values), max(values)), (label, measure, values)


def test_levers_are_those_of_the_first_seed() -> None:
    _, _, *rows = table_after(PAGE, "Levers, with the first seed")
    lines = {(line["row"], line["lever"]): line for line in STORED["cells"]}
    assert len(rows) == sum(1 for row, lever in lines if row == "dp_votes_centred") - 1
    for label, *shown in rows:
        lever = label.partition("`")[2].partition("`")[0]
        figures = lines["dp_votes_centred", lever]["runs"]["0"]["figures"]
        for text, (measure, scale) in zip(shown, MEASURES.items(), strict=True):
            assert said(text, scale * figures[measure]), (label, measure)
