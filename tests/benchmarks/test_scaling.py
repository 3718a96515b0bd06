"""The server's cost is measured with stubs, and the line through it is the line that made it."""

import json

import numpy as np
import pytest

from benchmarks import scaling
from benchmarks.harness import RESULTS
from distributed_privrl.core.executor import Executor
from distributed_privrl.rounds.totals import total_of
from tests.benchmarks.quick import last_line


def test_rounds_of_stubs_are_measured(
    capsys: pytest.CaptureFixture[str], ray_executor: Executor
) -> None:
    found = last_line(scaling, capsys)
    cells = sum(map(len, scaling.QUICK.grid.values()))
    assert len(found["ratios"]) == cells
    assert min(found["ratios"].values()) > 1  # nothing is cheaper than not sending it


def test_a_crowd_is_summed_as_often_as_it_stands_there() -> None:
    group = scaling.AtHand(5, 7)
    assert group.size == 5
    answers = group.call("clipped_sum")
    total = total_of(answers, out=np.empty(7))
    assert np.array_equal(total, 5 * answers[0])  # multiples of a power of two: exact
    assert np.abs(total).min() > 0


def test_the_line_is_found_again() -> None:
    true = np.array([2.0, 0.5, 30.0, 4.0])
    cells = [
        {"workers": w, "parameters": p, "CPU ms": np.array([1, w, p / 1e6, w * p / 1e6]) @ true}
        for w in (1, 3, 10, 100)
        for p in (10**4, 10**6, 10**7)
    ]
    line, error = scaling.line_through(cells)
    assert line == pytest.approx(true, rel=1e-6)
    assert error < 1e-6
    said = scaling.foretold(line, 1000, 10**6)
    assert "moves 12 GB a round (9.6 s at 10 Gbit/s)" in said
    assert "With 32 processes that add up for 32 each: 0.176 s in each of them" in said


def test_processes_in_between_pay_from_where_the_line_says() -> None:
    """Nothing but workers costs: one each. sums in between are quicker from 6 workers on."""
    line = np.array([0.0, 1e3, 0.0, 0.0])
    counts = range(2, 10)
    assert [scaling.seconds(line, n, 10**6) for n in counts] == pytest.approx([*counts])
    between = [scaling.seconds_between(line, n, 10**6) for n in counts]
    assert between == pytest.approx([3, 4, 4, 5, 5, 6, 6, 6])
    assert scaling.first(lambda n: scaling.seconds_between(line, n, 1) < n) == 6


def test_workers_whose_cost_noise_hides_end_no_search() -> None:
    """The line of a quick run beside other processes, in which a further worker costs nothing."""
    cells = [
        {"workers": w, "parameters": p, "CPU ms": 2.6 + 109 * p / 1e6}
        for w in (1, 3, 10, 100)
        for p in (10**4, 10**6, 10**7)
    ]
    found = scaling.fan_in(cells)
    assert [size["quicker from"] for size in found["sizes"]] == [None] * len(found["sizes"])
    said = " ".join(scaling.said_of(found))
    assert "these are quicker with none of up to 10,000 workers." in said


def test_what_is_stored_of_fan_in_follows_from_what_is_stored_of_rounds() -> None:
    stored = json.loads((RESULTS / "scaling.json").read_text())
    assert stored["fan_in"] == scaling.fan_in(stored["cells"])
    said = (RESULTS / "scaling.md").read_text().splitlines()
    assert set(scaling.said_of(stored["fan_in"])) <= set(said)
    line, _ = scaling.line_through(stored["cells"])
    for size in stored["fan_in"]["sizes"]:  # quicker from there on for good
        n = size["quicker from"]
        quicker = [
            scaling.seconds_between(line, w, size["parameters"])
            < scaling.seconds(line, w, size["parameters"])
            for w in range(2, 1001)
        ]
        assert quicker == [w >= n for w in range(2, 1001)]
