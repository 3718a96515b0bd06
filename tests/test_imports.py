"""Who imports whom: no module reaches itself or a test, and what is shown decides nothing."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import distributed_privrl

PACKAGE = Path(distributed_privrl.__file__).parent


def modules(root: Path) -> dict[str, Path]:
    """Return the files of a package by the names of their modules."""
    found = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path) -> Iterator[str]:
    """Yield what a module imports, at its top, within functions and for its types alone."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def graph(root: Path) -> dict[str, set[str]]:
    """Return the modules of a package that each of them imports."""
    files = modules(root)
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        names = (one if one in files else one.rpartition(".")[0] for one in imported(name, path))
        found[name] = {one for one in names if one in files}
    return found


def check_acyclic(root: Path) -> None:
    """Fail if a module imports itself, over however many others."""
    try:
        graphlib.TopologicalSorter(graph(root)).prepare()
    except graphlib.CycleError as error:
        pytest.fail(f"import cycle: {' < '.join(error.args[1])}")


def test_the_package_has_no_import_cycle() -> None:
    found = graph(PACKAGE)
    assert len(found) > 200
    assert "distributed_privrl.core.errors" in found["distributed_privrl.core.checks"]
    check_acyclic(PACKAGE)


@pytest.mark.parametrize(
    "back",
    [
        "from package.inner import one\n",
        "def later():\n    from package.inner.one import name\n",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .one import name\n",
        "class Late:\n    def method(self):\n        import package.inner.one\n",
    ],
)
def test_a_cycle_is_found_wherever_it_hides(tmp_path: Path, back: str) -> None:
    inner = tmp_path / "package" / "inner"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        (folder / "__init__.py").write_text("")
    (inner / "one.py").write_text("from package.inner.two import name\n")
    (inner / "two.py").write_text("name = 1\n")
    check_acyclic(tmp_path / "package")
    (inner / "two.py").write_text(back)
    with pytest.raises(pytest.fail.Exception, match=r"import cycle: package\.inner"):
        check_acyclic(tmp_path / "package")


def imports_of_tests(root: Path) -> list[str]:
    """Return which modules of a folder import a module of tests."""
    return [
        f"{name} imports {one}"
        for name, path in modules(root).items()
        for one in imported(name, path)
        if any(part.startswith("test_") for part in one.split("."))
    ]


def test_no_module_imports_tests() -> None:
    """What tests share lies in modules of its own, such as those of `tests/worlds`."""
    assert imports_of_tests(Path(__file__).parent) == []


@pytest.mark.parametrize(
    "line",
    [
        "from tests.inner.test_one import name",
        "from tests.inner import test_one as shared",
        "def later():\n    import tests.inner.test_one",
        "from .inner.test_one import name",
    ],
)
def test_an_import_of_tests_is_found(tmp_path: Path, line: str) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "shared.py").write_text(f"{line}\n")
    (found,) = imports_of_tests(tmp_path / "tests")
    assert found.startswith("tests.shared imports tests.inner.test_one")


def decisions_from_display(path: Path) -> list[str]:
    """Return the lines of a module that read a plan's ``details`` for more than to show it.

    To show it is to hand it on: ``{**plan.details, ...}``, in ``facts`` or as another plan's
    ``details``.
    """
    tree = ast.parse(path.read_text())
    shown = {
        id(value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if key is None
    }
    return [
        f"{path.name}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "details" and id(node) not in shown
    ]


def test_what_a_display_decides_is_found(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text(
        "z = plan.details.get('noise_multiplier')\nshown = {**plan.details, 'z': z}\n"
    )
    assert decisions_from_display(planted) == ["planted.py:1"]


@pytest.mark.parametrize("folder", sorted(path.name for path in PACKAGE.iterdir() if path.is_dir()))
def test_a_plan_s_display_decides_nothing(folder: str) -> None:
    files = (PACKAGE / folder).rglob("*.py")
    assert [line for path in files for line in decisions_from_display(path)] == []
