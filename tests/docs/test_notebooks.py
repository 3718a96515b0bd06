"""Notebooks are some ten cells of code that run, plot and judge."""

import importlib.util
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest

from distributed_privrl.marginals import belief
from tests.docs.pages import ROOT
from tests.docs.running import in_folder, leave_out_pictures, run_cells
from tests.docs.smaller import smaller
from tests.marginals.programs import chained


def _maker() -> Any:
    spec = importlib.util.spec_from_file_location(
        "notebooks", ROOT / "docs" / "notebooks" / "make.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MAKER = _maker()
EACH = pytest.mark.parametrize("path", MAKER.sources(), ids=lambda path: path.stem)


def test_there_are_three() -> None:
    page = (ROOT / "docs" / "notebooks.md").read_text()
    named = set(re.findall(r"`docs/notebooks/(\w+)\.py`", page))
    assert {path.stem for path in MAKER.sources()} == named == {"fleet", "hospital", "maze"}


def test_cells_are_those_of_the_source() -> None:
    source = "# %% [markdown]\n# # Title\n#\n# Text.\n\n# %%\nx = 1\n\n# %%\nx\n"
    assert MAKER.cells_of(source) == [
        ("markdown", "# Title\n\nText."),
        ("code", "x = 1"),
        ("code", "x"),
    ]


@EACH
def test_a_notebook_is_some_ten_cells_that_run_plot_and_judge(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = MAKER.cells_of(path.read_text())
    code = [text for kind, text in cells if kind == "code"]
    assert cells[0][0] == "markdown"
    assert 7 <= len(code) <= 10
    assert any("The judgement" in text for kind, text in cells if kind == "markdown")
    in_folder(tmp_path, monkeypatch)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    leave_out_pictures(monkeypatch)
    monkeypatch.setattr(belief, "estimated", chained)
    for name in ("MINARI_DATASETS_PATH", "PRIVRL_LEDGER"):
        monkeypatch.setenv(name, "the notebook sets its own")
    monkeypatch.setenv("PRIVRL_SMALL", "1")
    lines, shown = run_cells(code, monkeypatch, smaller=smaller)
    verbs = {line.split()[1] for line in lines}
    assert {"ledger", "plan", "run", "certificate"} <= verbs
    assert shown >= 1
    assert "valid" in capsys.readouterr().out


def test_the_extra_has_what_runs_them() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for name in ("nbclient", "nbformat", "ipykernel"):
        assert re.search(rf"^{name}==", lock, re.MULTILINE)
