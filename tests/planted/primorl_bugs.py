"""Bugs in how a run of PriMORL is put together: what it runs is not what it certifies."""

from dataclasses import replace
from typing import Any

import pytest

from distributed_privrl.methods.primorl import run
from distributed_privrl.methods.primorl.ensemble import EnsembleFacts


def clip_at_ten_times(patch: pytest.MonkeyPatch) -> None:
    """Workers clip at 10 C, the noise is for C."""
    right = EnsembleFacts.update

    def update(self: EnsembleFacts, local: Any, clip_norm: float | None) -> Any:
        return right(self, local, None if clip_norm is None else 10 * clip_norm)

    patch.setattr(EnsembleFacts, "update", update)


def coins_at_twice(patch: pytest.MonkeyPatch) -> None:
    """Coins are thrown at 2 q, q is charged."""
    right = run.WorkerSpec

    def spec(*, sampling_probability: float, **others: Any) -> Any:
        return right(sampling_probability=min(1.0, 2 * sampling_probability), **others)

    patch.setattr(run, "WorkerSpec", spec)


def trajectories_are_units(patch: pytest.MonkeyPatch) -> None:
    """Units are trajectories, whatever ``data.unit`` says."""
    right = run.shard_refs

    def refs(*arguments: Any, **keywords: Any) -> Any:
        return [replace(ref, unit="trajectory") for ref in right(*arguments, **keywords)]

    patch.setattr(run, "shard_refs", refs)


def no_cap_on_a_unit(patch: pytest.MonkeyPatch) -> None:
    """``data.max_length`` is forgotten."""
    right = run.shard_refs

    def refs(*arguments: Any, **keywords: Any) -> Any:
        return right(*arguments, **{**keywords, "max_rows_per_unit": None})

    patch.setattr(run, "shard_refs", refs)


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
