"""Bugs that show what a sensitive dataset is, or says of itself; each opens it first."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.experiments import judging
from distributed_privrl.experiments import run as program
from distributed_privrl.methods.expert import report as expert_report
from distributed_privrl.privacy.metrics import PublicValue
from tests.gates.metadata import Case, units_of

Plant = Callable[[pytest.MonkeyPatch, Case], None]


def _said(case: Case) -> Any:
    return case.store.info(case.sensitive).metadata.open(Purpose.OWNER)


def best_expert_in_the_report(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The report shows which return counts as 1: that of the best sensitive expert."""
    right = expert_report.policy_sections

    def sections(*arguments: Any) -> list[Section]:
        first, *others = right(*arguments)
        best = Metric(name="best", value=PublicValue(_said(case)["evaluation_returns"]["best"]))
        return [replace(first, metrics=[*first.metrics, best]), *others]

    patch.setattr(expert_report, "policy_sections", sections)


def best_expert_in_an_explanation(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The same to four digits, in the words beside a figure that was released."""
    right = expert_report.policy_sections

    def sections(*arguments: Any) -> list[Section]:
        first, *others = right(*arguments)
        best = _said(case)["evaluation_returns"]["best"]
        return [replace(first, explanation=f"1 is the best policy ({best:.4g})."), *others]

    patch.setattr(expert_report, "policy_sections", sections)


def returns_in_the_checkpoint(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The checkpoint keeps the returns that the metadata have, for a later report."""
    right = expert_report.write_facts

    def facts(folder: Any, stable: Any) -> None:
        right(folder, stable)
        known = json.dumps(_said(case)["reference_returns"])
        (folder / "references.json").write_text(known)

    patch.setattr(expert_report, "write_facts", facts)


def description_of_the_release(patch: pytest.MonkeyPatch, case: Case) -> None:
    """A released dataset is described as the sensitive one was."""
    right = DatasetStore.write_trajectories

    def write(self: DatasetStore, *arguments: Any, metadata: Any, **others: Any) -> None:
        described = {**metadata, "description": _said(case)["description"]}
        right(self, *arguments, metadata=described, **others)

    patch.setattr(DatasetStore, "write_trajectories", write)


def lengths_in_the_progress(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Progress says how long the longest trajectory is."""
    right = judging.evaluate_release

    def evaluate(*arguments: Any, progress: Any, **others: Any) -> Any:
        progress(f"trajectories of up to {max(_said(case)['lengths'])} steps", 0, 1)
        return right(*arguments, progress=progress, **others)

    patch.setattr(judging, "evaluate_release", evaluate)


def rows_in_the_metrics(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Metrics have the number of rows, which nobody declared."""
    right = program._log

    def log(directory: Any, certificate: Any, *further: Any) -> None:
        right(directory, certificate, *further)
        total = case.store.info(case.sensitive).total_steps.open(Purpose.OWNER)
        directory.write_metrics([{"rows": PublicValue(total)}])

    patch.setattr(program, "_log", log)


def unit_in_the_progress(patch: pytest.MonkeyPatch, case: Case) -> None:
    """Progress names the unit that is looked at."""
    right = judging.evaluate_release
    unit = int(units_of(case.store, case.sensitive)[7])

    def evaluate(*arguments: Any, progress: Any, **others: Any) -> Any:
        progress(f"looking at {unit}", 0, 1)
        return right(*arguments, progress=progress, **others)

    patch.setattr(judging, "evaluate_release", evaluate)


def units_in_the_checkpoint(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The checkpoint keeps the ids of units, for a later resume."""
    _beside_metrics(patch, "units.npy", units_of(case.store, case.sensitive)[3:5])


def rows_in_the_checkpoint(patch: pytest.MonkeyPatch, case: Case) -> None:
    """The checkpoint keeps a few rows, to compare others with."""
    rows = case.store.read_transitions(case.sensitive, unit="transition")
    _beside_metrics(patch, "rows.npy", np.asarray(rows.observations[5:7], np.float32))


def _beside_metrics(patch: pytest.MonkeyPatch, name: str, values: NDArray[Any]) -> None:
    right = program._log

    def log(directory: Any, certificate: Any, *further: Any) -> None:
        right(directory, certificate, *further)
        np.save(directory.checkpoint / name, values)

    patch.setattr(program, "_log", log)
