"""Bugs in what a run of PriMORL certifies: something was charged and is left out."""

from typing import Any

import pytest

from distributed_privrl.stages import run


def count_left_out(patch: pytest.MonkeyPatch) -> None:
    """The noisy count is charged, and not certified."""
    right = run.count_units
    patch.setattr(run, "count_units", lambda *a, **k: (right(*a, **k)[0], None))


def bounds_left_out(patch: pytest.MonkeyPatch) -> None:
    """Noisy bounds are charged, and not certified."""
    right = run.MethodResult

    def result(*, stages: Any, ledger_entries: Any, **others: Any) -> Any:
        return right(
            stages=tuple(stage for stage in stages if stage.name != "bounds"),
            ledger_entries=tuple(name for name in ledger_entries if not name.endswith("/bounds")),
            **others,
        )

    patch.setattr(run, "MethodResult", result)
