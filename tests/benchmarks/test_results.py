"""What the stored results say of seeds: each one's figure, and how an interval was made."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.harness import RESULTS

STORED = sorted(RESULTS.glob("*.json"))
METHODS = (
    r"\((t, n=\d|percentile bootstrap, n=\d\d+|Fieller, n=\d+ and \d+|paired (t|Fieller), n=\d+)\)$"
)
MEAN_OF = {"utility_agents": "return", "utility_expert": "return", "utility_primorl": "return"}


def cells(path: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
    return found


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_an_interval_says_how_it_was_made_and_has_its_seeds_beside(path: Path) -> None:
    for cell in cells(path):
        for name, value in cell.items():
            if name.endswith("95 %") and value not in (None, "unknown", ""):
                assert re.search(METHODS, value), (name, value)
                kept = name.removesuffix("share 95 %").removesuffix("95 %") + "seeds"
                assert len(cell[kept]) >= 2, kept


@pytest.mark.parametrize("name", MEAN_OF)
def test_seeds_are_stored_and_their_mean_is_the_figure(name: str) -> None:
    for cell in cells(RESULTS / f"{name}.json"):
        assert isinstance(cell["seeds"], list)
        assert np.mean(cell["seeds"]) == pytest.approx(cell[MEAN_OF[name]], rel=2e-3, abs=0.5)


@pytest.mark.parametrize("path", [p for p in STORED if "maze2d" in p.stem], ids=lambda p: p.stem)
def test_tables_whose_seeds_were_not_stored_have_ranges_and_no_shares(path: Path) -> None:
    for cell in cells(path):
        if "iql seeds" not in cell:
            assert not [name for name in cell if "95 %" in name]
            assert not [name for name in cell if name.endswith("share") and "paper" not in name]
            low, high = (float(end) for end in cell["iql, range of 3"].split(" .. "))
            assert low - 0.5 <= cell["iql"] <= high + 0.5
    assert "Shares of the real rows' figure are withdrawn" in path.with_suffix(".md").read_text()
