"""What docs/scaling.md says of larger clusters follows from the rounds that were measured."""

import json
import re

import numpy as np
import pytest

from benchmarks import scaling
from benchmarks.harness import RESULTS
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "scaling.md").read_text()
STORED = json.loads((RESULTS / "scaling.json").read_text())


def rows(heading: str) -> list[list[float]]:
    """Return the figures of a table, by a word of its heading."""
    found = re.search(rf"^\| parameters \|.*{heading}.*\n\|[-|]+\n((?:\|.*\n)+)", PAGE, re.M)
    assert found, heading
    lines = [line.strip("|").split("|") for line in found[1].splitlines()]
    return [[figure(cell) for cell in line] for line in lines]


def figure(cell: str) -> float:
    """Return the first number of a cell; the same one twice in it is one for each of two turns."""
    number, *others = re.findall(r"[\d,]*\.?\d+", re.sub(r"\(.*?\)", "", cell))
    assert not others or others == [number], cell
    return float(number.replace(",", ""))


def two_digits(value: float) -> float:
    return float(f"{value:.2g}")


def test_costs_of_a_server_are_those_of_the_line() -> None:
    line, error = scaling.line_through(STORED["cells"])
    each = f"{line[1]:.1g}".lstrip("0")
    assert f"some {each} ms for each worker and {line[3]:.1g} ms for each worker and" in PAGE
    assert f"which misses them by {error:.0%}".replace("%", " %") in PAGE
    expected = [
        [
            size,
            *(two_digits(scaling.seconds(line, n, size)) for n in (10, 100, 1000)),
            two_digits(scaling.seconds(line, scaling.in_between(1000)[1], size)),
        ]
        for size in scaling.FORETOLD_PARAMETERS
    ]
    assert rows("100 workers, all at the server") == expected
    assert scaling.in_between(1000) == (32, 32)


def test_from_where_sums_in_between_pay_is_what_was_stored() -> None:
    found = STORED["fan_in"]
    assert rows(f"{found['workers']} workers, {found['processes in between']} processes") == [
        [
            size["parameters"],
            two_digits(size["server alone, s"]),
            two_digits(size["with processes in between, s"]),
            size["quicker from"],
        ]
        for size in found["sizes"]
    ]


def test_the_example_is_that_of_the_stored_rates() -> None:
    line, _ = scaling.line_through(STORED["cells"])
    example = STORED["fan_in"]["example"]
    work, size = example["core-seconds"], example["parameters"]
    limit = example["server is the limit from"]
    assert f"{100 * round(example['gradients a core-second'] / 100):,} clipped gradients" in PAGE
    assert f"A batch of {example['batch']:,} is {work:.2g} core-seconds." in PAGE
    ten, hundred = (
        [f"{value:.2g}".lstrip("0") for value in (work / n, scaling.seconds(line, n, size))]
        for n in (10, 100)
    )
    assert f"Ten workers need {ten[0]} s and the server {ten[1]} s" in PAGE
    assert f"workers need {hundred[0]} s and a server alone {hundred[1]} s" in PAGE
    assert f"it needs longer than they do from {limit} workers on" in PAGE
    assert f"where models are large, {limit - 1} in the example" in PAGE


def test_a_figure_is_read_as_it_is_written() -> None:
    assert figure(" 88,076 (the demo) ") == 88_076
    assert figure(" .039 + .039 s ") == pytest.approx(0.039)
    assert np.isclose(figure("59 s"), 59)
