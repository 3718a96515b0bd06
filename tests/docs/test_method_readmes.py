"""Each method's README maps its paper to functions that exist, and names all of its files."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import distributed_privrl as pr

PACKAGE = Path(str(pr.__file__)).parent
FOLDERS = [one.parent for one in sorted(PACKAGE.glob("methods/*/__init__.py"))]
MOST_LINES = 30
EACH = pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: str(folder.name))


def _defined(body: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for one in body:
        if isinstance(one, ast.FunctionDef | ast.ClassDef):
            yield prefix + one.name
        if isinstance(one, ast.ClassDef):
            yield from _defined(one.body, f"{one.name}.")


def test_there_are_methods() -> None:
    assert {folder.name for folder in FOLDERS} >= {"privorl", "primorl", "value_iteration"}


@EACH
def test_it_is_short_and_names_every_file(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert len(text.splitlines()) <= MOST_LINES
    files = {path.name for path in folder.glob("*.py")} - {"__init__.py"}
    assert files <= set(re.findall(r"`(\w+\.py)`", text))


@EACH
def test_what_it_maps_the_paper_to_exists(folder: Path) -> None:
    quoted = re.findall(r"`([\w/]+\.py)(?:::([\w.]+))?`", (folder / "README.md").read_text())
    assert sum(bool(name) for _, name in quoted) >= 10
    for file, name in quoted:
        path = folder / file if (folder / file).exists() else PACKAGE / file
        defined = set(_defined(ast.parse(path.read_text()).body))
        assert not name or name in defined, f"{file}::{name}"
