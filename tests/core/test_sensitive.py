"""A sensitive value does nothing but be opened, and each place that opens one is known."""

import ast
import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distributed_privrl
from distributed_privrl.core.sensitive import Purpose, Sensitive

PACKAGE = Path(distributed_privrl.__file__).parent
OPENED = {
    ("agents/experts.py", "of", "CHECK"),  # m, n, p_min and L against what is declared
    ("agents/experts.py", "read_log_probabilities", "COMPUTING"),  # in a host of experts
    ("cli/datasets.py", "_slow", "OWNER"),  # on standard error, of the owner's command
    ("cli/datasets.py", "_trajectories", "OWNER"),
    ("cli/datasets.py", "collect", "OWNER"),
    ("cli/datasets.py", "import_table", "OWNER"),
    ("cli/drafting.py", "init", "OWNER"),  # on standard error, of the owner's command
    ("data/importing.py", "from_table", "OWNER"),  # on standard error, of the owner's program
    ("data/metadata.py", "_mark", "CHECK"),  # public, a side, certified: who may use it
    ("data/metadata.py", "build_metadata", "STORAGE"),
    ("data/store.py", "_trajectories", "STORAGE"),
    ("data/store.py", "iter_unit_ids", "STORAGE"),  # for the process that reads their rows
    ("experiments/attacks.py", "attacked_rows", "PRIVATE"),
    ("experiments/cards.py", "_is_synthetic", "RELEASED"),
    ("experiments/cards.py", "_signed", "RELEASED"),
    ("experiments/cards.py", "_what_it_is", "RELEASED"),
    ("experiments/cards.py", "card", "RELEASED"),
    ("experiments/publishing.py", "check_free", "CHECK"),  # whose run made the output
    ("experiments/samples.py", "_share", "COMPUTING"),  # how rarely a row is drawn
    ("experiments/usefulness_report.py", "usefulness_sections", "PRIVATE"),
    ("experiments/trajectory_reports.py", "_said", "RELEASED"),
    ("experiments/trajectory_reports.py", "mean_length", "RELEASED"),  # steps of the release
}
"""File, function and purpose: what is opened there goes no farther than the purpose says."""


@pytest.mark.parametrize(
    "use",
    [
        *(bool, float, int, len, list, hash, json.dumps, pickle.dumps, copy.copy, copy.deepcopy),
        *(lambda one: one + 1, lambda one: one == 31.5, lambda one: one != 1, lambda one: one < 40),
        *(np.float64, lambda one: max(one, 1.0), lambda one: f"{one:.3g}", lambda one: one.value),
        lambda one: one["best"],
    ],
)
def test_nothing_can_be_done_with_it(use: Any) -> None:
    with pytest.raises((TypeError, AttributeError)):
        use(Sensitive(31.5))


def test_it_is_shown_by_no_text() -> None:
    one = Sensitive({"best": 31.5})
    assert {str(one), repr(one), f"{one}", f"{one!r}", f"{one:}"} == {"<sensitive>"}
    assert not hasattr(one, "__dict__")


def test_it_is_opened_for_a_purpose_alone() -> None:
    assert Sensitive(31.5).open(Purpose.CHECK) == 31.5
    with pytest.raises(TypeError, match="for a Purpose"):
        Sensitive(31.5).open("a report")  # type: ignore[arg-type]


def test_every_place_that_opens_one_is_known() -> None:
    found = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name != "core/sensitive.py":
            found |= {(name, *place) for place in _openings(ast.parse(path.read_text()))}
    assert found == OPENED


def test_a_hidden_opening_is_found() -> None:
    tree = ast.parse("def show(info):\n    use = Purpose\n    return info.metadata.open(use.OWNER)")
    assert _openings(tree) == {("show", "?")}
    assert _openings(ast.parse("x = open('file')")) == set()


def _openings(tree: ast.AST, function: str = "") -> set[tuple[str, str]]:
    """Return the function and the purpose of each mention of `Purpose` that is no import."""
    found = set()
    for node in ast.iter_child_nodes(tree):
        inner = node.name if isinstance(node, ast.FunctionDef) else function
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", "") == "Purpose":
            found.add((inner, node.attr))
        elif isinstance(node, ast.Name) and node.id == "Purpose":
            found.add((inner, "?"))
        else:
            found |= _openings(node, inner)
    return found
