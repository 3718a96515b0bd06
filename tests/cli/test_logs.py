"""Standard error as JSON lines: levels, progress, and no time of a private stage."""

import io
import json
import logging
import sys
from pathlib import Path

import absl.logging
import pytest
import yaml
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.cli.logs import JsonLines, warnings_told
from distributed_privrl.cli.progress import PlainProgress
from tests.worlds import grid

SCHEMA = """
columns: {observation: [sex, x], action: u, reward: pay, next_observation: none}
kinds:
  sex: {type: category, values: [f, m]}
spaces:
  observation: {type: box, low: [0], high: [5]}
  action: {type: box, low: 0, high: 5}
"""


def test_each_line_is_an_object_of_its_level() -> None:
    out = io.StringIO()
    lines = JsonLines(out)
    print("plan: 20 rounds\nwarning: delta is", end="", file=lines)
    print(' large\n{"level": "info", "stage": "a"}\n\nerror: no', end="", file=lines)
    lines.finish()
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"level": "info", "message": "plan: 20 rounds"},
        {"level": "warning", "message": "delta is large"},
        {"level": "info", "stage": "a"},
        {"level": "error", "message": "no"},
    ]


def test_what_is_logged_is_a_line_of_todays_standard_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A library that finds no handler keeps the stream of its first warning, closed or not."""
    first, second, third = (io.StringIO() for _ in range(3))
    root, logger = logging.getLogger(), logging.getLogger("distributed_privrl.runtime")
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(sys, "stderr", first)
    with warnings_told():
        absl.logging.warning("a library")
        logger.info("a detail")
        monkeypatch.setattr(sys, "stderr", second)
        first.close()
        logger.warning("worker %d died", 3)
        logger.error("nothing goes on")
        monkeypatch.setattr(sys, "stderr", third)
        third.close()
        logger.warning("nobody reads it")
    assert second.getvalue() == "warning: worker 3 died\nerror: nothing goes on\n"
    assert root.handlers == []


def test_a_run_tells_of_itself_in_objects_without_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = grid.Grid(tmp_path).budget(epsilon=6)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(world.store.root))
    monkeypatch.setenv("PRIVRL_LEDGER", world.url)
    monkeypatch.setenv("PRIVRL_LOG", "json")
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(grid.values()))
    line = ["run", str(tmp_path / "run.yaml"), "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, line)
    assert done.exit_code == 0, done.output
    told = [json.loads(one) for one in done.stderr.splitlines()]
    rounds = [one for one in told if one.get("stage") == "value iteration"]
    assert [one["done"] for one in rounds][-1] == rounds[0]["total"] == 20
    assert {*rounds[-1]} == {"level", "stage", "done", "total", "note"}
    assert done.stdout.startswith("released")  # results stay as they are
    refused = CliRunner().invoke(app, line)
    assert refused.exit_code == 2
    *_, why = (json.loads(one) for one in refused.stderr.splitlines())
    assert why["level"] == "error"
    assert "resume" in why["message"]


def test_stages_that_read_no_sensitive_row_may_have_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PRIVRL_LOG", "json")
    progress = PlainProgress()
    for stage in ("public pre-training", "private rounds"):
        progress(stage, 5, 10)
    public, private = map(json.loads, capsys.readouterr().err.splitlines())
    assert public["seconds"] == "0"
    assert "seconds" not in private


def test_what_the_owner_alone_may_see_is_in_no_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    table, schema = tmp_path / "table.csv", tmp_path / "schema.yaml"
    table.write_text("sex,x,u,pay\nf,1,1,0\nm,2,1,1\nJane Doe,3,1,0\n")
    schema.write_text(SCHEMA)
    line = ["import", str(table), "--schema", str(schema), "--dataset"]
    shown = CliRunner().invoke(app, [*line, "ward/shown-v0"])
    assert shown.exit_code == 0, shown.output
    assert "Jane Doe" in shown.stderr
    monkeypatch.setenv("PRIVRL_LOG", "json")
    told = CliRunner().invoke(app, [*line, "ward/told-v0"])
    assert told.exit_code == 0, told.output
    assert "Jane" not in told.stderr
    assert "for a terminal" in json.loads(told.stderr.splitlines()[-1])["message"]


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRIVRL_LOG", "xml")
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 2
    assert "PRIVRL_LOG=xml is neither text nor json" in done.output
