"""A benchmark at its smallest scale."""

import json
from types import ModuleType
from typing import Any

import pytest

from benchmarks import harness


def last_line(
    module: ModuleType, capsys: pytest.CaptureFixture[str], *arguments: str
) -> dict[str, Any]:
    name = module.__name__.rpartition(".")[2]
    result = harness.main(name, module.run, ["--scale", "quick", *arguments])
    lines = capsys.readouterr().out.splitlines()
    header, rule, *rows = lines[: 2 + len(result.cells)]
    assert len(rows) == len(result.cells)
    assert len({line.count("|") for line in (header, rule, *rows)}) == 1
    found: dict[str, Any] = json.loads(lines[-1])
    assert found["benchmark"] == name
    return found
