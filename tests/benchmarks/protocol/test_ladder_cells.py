import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import utility_protocol
from benchmarks.harness import RESULTS
from benchmarks.protocol import ladder
from benchmarks.protocol.ladder_cells import FOLDER, NAME, Cell
from benchmarks.protocol.registration import settings_hash

STORED = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("ladder-*.json"))]


def _run(folder: Path, capsys: pytest.CaptureFixture[str], *rungs: str) -> dict[str, Any]:
    given = ["--part", "ladder", "--scale", "quick", "--mazes", "eval-umaze", "--rungs", *rungs]
    places = [f"--work={folder / 'work'}", f"--cells={folder / 'cells'}", f"--out={folder}"]
    utility_protocol.main([*given, *places])
    last: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return last


def test_cells_are_kept_blanks_stay_blank_and_a_whole_ladder_is_ordered(
    judged: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(tmp_path, capsys, ladder.REAL)["ordered"] == {"eval-umaze": False}
    table = (tmp_path / f"{NAME}.md").read_text()
    assert f"{ladder.BLURRED} was not run" in table
    lines = [line for line in table.splitlines() if line.startswith("| eval-umaze")]
    blank = [line for line in lines if not "".join(line.split("|")[4:]).strip()]
    assert (len(lines), len(blank)) == (len(ladder.RUNGS), len(ladder.RUNGS) - 1)
    assert _run(tmp_path, capsys, *ladder.MADE)["ordered"] == {"eval-umaze": False}
    assert judged == [4000] * len(ladder.MADE)
    cell = Cell(maze="eval-umaze", rung=ladder.PRETRAINED, scale="quick")
    row = json.loads((tmp_path / "cells" / f"{_shuffled().name}.json").read_text())
    row |= {"rung": cell.rung, "settings_sha256": settings_hash(cell.settings)}
    (tmp_path / "cells" / f"{cell.name}.json").write_text(json.dumps(row))  # of another machine
    assert _run(tmp_path, capsys, *ladder.RUNGS)["ordered"] == {"eval-umaze": True}
    assert len(judged) == len(ladder.MADE)


def _shuffled() -> Cell:
    return Cell(maze="eval-umaze", rung=ladder.SHUFFLED, scale="quick")


def test_a_cell_of_other_settings_is_judged_again(
    judged: list[int],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _run(tmp_path, capsys, ladder.REAL)
    monkeypatch.setattr(ladder, "BLUR", 0.3)
    _run(tmp_path, capsys, ladder.REAL)
    assert len(judged) == 2


@pytest.mark.parametrize("row", STORED, ids=lambda row: f"{row['maze']}-{row['rung']}")
def test_stored_cells_are_of_the_settings_of_the_code(row: dict[str, Any]) -> None:
    cell = Cell(maze=row["maze"], rung=row["rung"], scale=row["scale"])
    assert row["settings_sha256"] == settings_hash(cell.settings)
    assert row["normalised"] == pytest.approx(sum(row["shifts"]) / len(row["shifts"]))


def test_the_stored_table_has_the_stored_cells_and_their_verdict() -> None:
    saved = json.loads((RESULTS / f"{NAME}.json").read_text())
    shown = {(line["maze"], line["rung"]): line["normalised"] for line in saved["cells"]}
    kept = {(row["maze"], row["rung"]): row["normalised"] for row in STORED}
    assert kept
    assert {key: value for key, value in shown.items() if value != ""} == kept
    for maze, ordered in saved["ordered"].items():
        scores = {rung: value for (place, rung), value in kept.items() if place == maze}
        assert ordered == (not ladder.disorder(scores))
