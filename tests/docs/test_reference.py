"""Nobody needs the source: keys, options, exit codes and columns have their rows in the pages."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import typer
from gymnasium.spaces import Box, Discrete
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import distributed_privrl as pr
from distributed_privrl.cli import ledger
from distributed_privrl.cli.app import app
from distributed_privrl.core import errors
from distributed_privrl.core.config import RunConfig
from distributed_privrl.data.exporting import export
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.off_policy.judge import ESTIMATORS, Estimate, Judgement
from distributed_privrl.evaluation.report import Metric, Section, report_json
from distributed_privrl.experiments.off_policy import WHO_ACTED, agent_record
from distributed_privrl.experiments.registry import METHODS, method_named
from distributed_privrl.experiments.sweeps.config import (
    Axis,
    ComposedSelection,
    PrivateSelection,
    PublicSelection,
)
from distributed_privrl.experiments.sweeps.job import TrialResult
from distributed_privrl.experiments.sweeps.outcome import TABLE, write_outcome
from distributed_privrl.experiments.trials import TrialSpec, failure, without_reason
from distributed_privrl.methods.dprft.config import OPTIONS
from distributed_privrl.privacy.certificate import Certificate, Stage
from distributed_privrl.privacy.metrics import PublicValue
from distributed_privrl.runtime.rllib import bridge
from tests.data.conftest import walk
from tests.docs.pages import ROOT, section
from tests.worlds.answers import released

DOCS = ROOT / "docs"


def test_every_command_and_option_has_its_row() -> None:
    page = (DOCS / "options.md").read_text()
    sections = [part.partition("\n") for part in page.split("\n## ")[1:]]
    shown = {
        title.strip("`"): re.findall(r"^\| `.+$", rows, re.MULTILINE) for title, _, rows in sections
    }
    known = dict(commands())
    assert list(shown) == list(known), "docs/options.md: the sections must be the commands"
    for name, rows in known.items():
        assert shown[name] == rows, "docs/options.md: the rows must be those of `--help`"


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield each command and the rows of its arguments and options, as its help has them."""
    found: list[tuple[str, Any]] = [("privrl", typer.main.get_command(app))]
    while found:
        name, command = found.pop(0)
        inner = getattr(command, "commands", {})
        found[:0] = [(f"{name} {verb}", one) for verb, one in inner.items()]
        if name == "privrl" or not inner:
            shown = [one.get_help_record(typer.Context(command)) for one in command.params]
            cells = [[cell.replace("|", "\\|") for cell in one] for one in shown if one]
            yield name, [f"| `{words}` | {meaning} |" for words, meaning in cells]


def test_every_exit_code_has_its_row() -> None:
    rows = re.findall(r"^\| (\d+) \|", section(DOCS / "cli.md", "Exit codes"), re.MULTILINE)
    found = [one for one in vars(errors).values() if isinstance(one, type)]
    raised = {one.exit_code for one in found if issubclass(one, errors.PrivRLError)}
    assert sorted(map(int, rows)) == sorted({0, errors.INTERRUPTED_EXIT_CODE} | raised)


def _first_cells(page: Path, title: str) -> list[set[str]]:
    """Return the words in backticks of each row, first and second cell, of a section's table."""
    cells = re.findall(r"^\| (`.*?) \| (`.*?) \|", section(page, title), re.MULTILINE)
    return [set(re.findall(r"`([^`]+)`", " ".join(column))) for column in zip(*cells, strict=True)]


def test_every_exported_column_has_its_row(tmp_path: Path) -> None:
    store = DatasetStore(tmp_path)
    boxes = {"observation_space": Box(-np.inf, np.inf, (2,)), "action_space": Box(-1, 1, (1,))}
    kinds = {"observation_space": Discrete(5, start=2), "action_space": Discrete(3)}
    store.write_trajectories("boxes-v0", walk((2, 1)), unit_column="patient_id", **boxes)
    store.write_trajectories("kinds-v0", walk((2, 1), discrete=True), **kinds)
    tables: set[str] = set()
    arrays: set[str] = set()
    for name in ("boxes-v0", "kinds-v0"):
        out = {form: tmp_path / f"{name}.{form}" for form in ("csv", "parquet", "npz")}
        for form, path in out.items():
            export(store, name, form, path)
        columns = list(pd.read_csv(out["csv"]))
        assert columns == pq.read_schema(out["parquet"]).names
        assert columns == list(pr.load(name, store=store).to_pandas())
        tables |= set(columns)
        arrays |= set(np.load(out["npz"]))
    assert _first_cells(DOCS / "data.md", "Columns") == [tables, arrays]
    assert all(f"`{name}`" in section(DOCS / "evaluation.md", "RLlib") for name in bridge.COLUMNS)


def test_every_key_of_a_report_is_named() -> None:
    certificate = {"status": "valid", "ledger_entries": ["run-1"]}
    paid = released(2.0, "run-1")
    shown = Metric(name="a", value=paid, reference=PublicValue(1), explanation="read it so")
    bare = Metric(name="b", value=0.5)
    reports = [
        report_json("a report", certificate, [Section(title="all", metrics=metrics)], audience)
        for metrics, audience in (([shown], "public"), ([shown, bare], "private"))
    ]
    red = Section(title="red", not_useful=["how age and income go together"], notes=["age: -9"])
    reports.append(report_json("another", certificate, [red], "private"))
    said = section(DOCS / "reports.md", "For programs")
    keys = {key for report in reports for key in _keys(report)}
    kinds = {
        metric["kind"] for one in reports for part in one["sections"] for metric in part["metrics"]
    }
    assert set(re.findall(r"`(\w+)`", said)) == keys | kinds | {"public"}


def test_every_key_of_the_files_of_agents_and_sweeps_is_named(tmp_path: Path) -> None:
    said = section(DOCS / "reports.md", "Files of agents and sweeps")
    parts = re.split(r"^`(?=results|private/off)", said, flags=re.MULTILINE)
    agents, sweep, judged = (
        set(re.findall(r"`([^`]+)`", "\n".join(re.findall(r"^\| `.+$", part, re.MULTILINE))))
        for part in parts
    )
    spec = TrialSpec(
        root="", dataset="", content="", environment="", trainer="", seed=0, steps=1, episodes=1
    )
    failed = without_reason(failure(spec, ValueError()))
    assert agents == {*failed, "agent", "curve_steps", "curve_returns"}

    score = SimpleNamespace(model_dump=lambda **_: {})
    selection = SimpleNamespace(pays="public", score=score)
    asked: Any = SimpleNamespace(
        base=SimpleNamespace(method="pgm"), selection=selection, values={"seed": 0}
    )
    trial = TrialResult(name="a", values={"seed": 1}, score=1.0, epsilon=None, released="")
    write_outcome(asked, [trial], tmp_path)
    table = json.loads((tmp_path / TABLE).read_text())
    assert sweep == {*_keys(table)} - {"seed"}

    one = Estimate(1.0, np.array([0.9, 1.1]))
    shares = {"effective_episodes": 9.0, "mean_weight": 1.0, "unseen": 0.0}
    judgement = Judgement(estimates=dict.fromkeys(ESTIMATORS, one), **shares)
    assert judged == {*_keys(agent_record([judgement], one)), WHO_ACTED}


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    for one in value if isinstance(value, list) else ():
        yield from _keys(one)


def test_every_column_of_the_ledger_s_table_has_its_row() -> None:
    rows = re.findall(
        r"^\| (`.*?) \|", section(DOCS / "cli.md", "Columns of its export"), re.MULTILINE
    )
    assert re.findall(r"`(\w+)`", " ".join(rows)) == list(ledger.EXPORTED)


def test_every_key_has_its_row() -> None:
    page = (DOCS / "configuration.md").read_text()
    key = r"^\| `(?:method|seed|[a-z]+\.[a-z_.0-9]+)` \| .+$"
    rows = set(re.findall(key, page, re.MULTILINE))
    assert rows == {row for name in METHODS for row in _rows(method_named(name).config)}, (
        "docs/configuration.md: the rows must be those of the configuration classes"
    )


def test_every_key_of_a_sweep_has_its_row() -> None:
    page = (DOCS / "sweeps.md").read_text()
    rows = re.findall(r"^\| `(?:search\.KEY|selection)\.[a-z_.]+` \| .+$", page, re.MULTILINE)
    kinds = (PublicSelection, ComposedSelection, PrivateSelection)
    known = [row for kind in kinds for row in _rows(kind, "selection.")]
    assert set(rows) == {*_rows(Axis, "search.KEY."), *known}


def test_every_option_of_a_tuning_has_its_row() -> None:
    ways: dict[type[BaseModel], list[str]] = {}
    for by, kind in OPTIONS.items():
        ways.setdefault(kind, []).append(f"`{by}`")
    page = section(DOCS / "dprft.md", "Options")
    assert re.findall(r"^\| `(?!training.by).*$", page, re.MULTILINE) == [
        f"| {', '.join(bys)} {row}" for kind, bys in ways.items() for row in _rows(kind)
    ]


def _rows(
    model: type[BaseModel], prefix: str = "", given: BaseModel | None = None
) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner, key = field.annotation, field.alias or name
        value = _default(field) if given is None else getattr(given, name)
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            section = value if isinstance(value, BaseModel) else None
            yield from _rows(inner, f"{prefix}{key}.", section)
            continue
        meaning = RunConfig.model_fields["method"].description if name == "method" else None
        yield f"| `{prefix}{key}` | {_shown(value)} | {meaning or field.description} |"


def _default(field: FieldInfo) -> Any:
    return ... if field.is_required() else field.get_default(call_default_factory=True)


def _shown(value: Any) -> str:
    if value is ...:
        return "**required**"
    value = list(value) if isinstance(value, tuple) else value
    return f"`{value if isinstance(value, str) else json.dumps(value)}`"


def test_every_field_of_the_certificate_is_explained() -> None:
    page = (DOCS / "privacy.md").read_text()
    fields = {field.alias or name for name, field in Certificate.model_fields.items()}
    for name in fields | set(Stage.model_fields):
        assert f"`{name}`" in page, name
