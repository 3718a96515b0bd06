"""The gate on metadata sees each bug that shows what a sensitive dataset says of itself."""

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from distributed_privrl.data.store import DatasetStore
from tests.gates.metadata import gate_metadata, write_words
from tests.gates.metadata_cases import CASES
from tests.planted import metadata_bugs
from tests.planted.metadata_bugs import Plant

BUGS: dict[str, tuple[str, Plant, str]] = {
    "best expert in the report": (
        "expert",
        metadata_bugs.best_expert_in_the_report,
        "'run/report.json': .*'evaluation_returns.best'",
    ),
    "best expert in an explanation": (
        "expert",
        metadata_bugs.best_expert_in_an_explanation,
        "'run/report.html': .*'evaluation_returns.best'",
    ),
    "returns in the checkpoint": (
        "expert",
        metadata_bugs.returns_in_the_checkpoint,
        "'run/checkpoint/references.json': .*'reference_returns.planner'",
    ),
    "description of the release": (
        "expert",
        metadata_bugs.description_of_the_release,
        "'stable-v0/data/metadata.json': .*'description'",
    ),
    "lengths in the progress": (
        "apvi",
        metadata_bugs.lengths_in_the_progress,
        r"'what was said': .*'lengths\[",
    ),
    "rows in the metrics": (
        "apvi",
        metadata_bugs.rows_in_the_metrics,
        "'run/metrics.jsonl': .*'total_steps'",
    ),
    "a unit in the progress": (
        "privsyn",
        metadata_bugs.unit_in_the_progress,
        "'what was said': .*'units'",
    ),
    "units in the checkpoint": (
        "expert",
        metadata_bugs.units_in_the_checkpoint,
        "'run/checkpoint/units.npy': .*'units'",
    ),
    "rows in the checkpoint": (
        "privsyn",
        metadata_bugs.rows_in_the_checkpoint,
        "'run/checkpoint/rows.npy': .*'rows'",
    ),
}


@pytest.fixture(scope="module")
def masters(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DatasetStore]:
    methods = {method for method, *_ in BUGS.values()}
    return {name: CASES[name][1](tmp_path_factory.mktemp(name)) for name in methods}


@pytest.mark.parametrize("bug", BUGS)
def test_the_gate_sees_the_bug(
    bug: str, tmp_path: Path, masters: dict[str, DatasetStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    method, plant, what_it_says = BUGS[bug]
    case = CASES[method][0](tmp_path, masters[method])
    monkeypatch.setattr(Figure, "savefig", write_words)
    with monkeypatch.context() as patch:
        plant(patch, case)
        with pytest.raises(AssertionError, match=what_it_says):
            gate_metadata(case)
