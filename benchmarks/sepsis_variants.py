"""Which ways from patients to a policy the ICU-Sepsis study compares, and at which sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from distributed_privrl.methods.value_iteration.pessimism import Preset

HORIZON, SHORT = 20, 8
FIRST_SEED = 1
"""That of the first run of each cell: constants were chosen with seed 0."""
Counted = Literal["each step", "pooled", "once a patient", "outcomes"]


@dataclass(frozen=True, kw_only=True)
class Variant:
    """A way from trajectories to a policy.

    Args:
        counts: ``each step``: as the paper has it; ``pooled``: over time steps; ``once a patient``:
            pooled, with ``visits="first"``; ``outcomes``: `OutcomeCounts`.
        clusters: of states, beside the terminal ones; None: every state by itself.
        pessimism: preset of DP-APVI's penalty; None where it is another algorithm.
        horizon: time steps that are counted, and planned.
        seeds: runs of each cell.
        patients: numbers of patients; None: all.
    """

    counts: Counted
    clusters: int | None = None
    pessimism: Preset | None = "practical"
    horizon: int = HORIZON
    seeds: int = 3
    patients: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much is measured.

    Args:
        variants: the rows of the table, slow ones last.
        patients: numbers of patients.
        epsilons: None is without privacy.
    """

    variants: Sequence[Variant]
    patients: Sequence[int]
    epsilons: Sequence[float | None]


_PRESETS: tuple[Preset, ...] = ("none", "theory")
FULL = Scale(
    variants=(
        *(Variant(counts="outcomes", clusters=g, pessimism=None) for g in (None, 100, 20)),
        *(
            Variant(counts=counts, clusters=g)
            for counts in ("pooled", "once a patient")
            for g in (5, 10, 20, 50, 100)
        ),
        *(Variant(counts="pooled", clusters=20, pessimism=p) for p in _PRESETS),
        *(
            Variant(counts=counts, clusters=20, horizon=SHORT)
            for counts in ("pooled", "once a patient")
        ),
        *(Variant(counts="each step", clusters=g) for g in (20, 100)),
        Variant(counts="once a patient"),
        Variant(counts="pooled"),
        Variant(counts="pooled", horizon=SHORT),
        Variant(counts="once a patient", horizon=SHORT),
        *(Variant(counts="pooled", pessimism=p, seeds=1) for p in _PRESETS),
        Variant(counts="each step"),
        *(
            Variant(counts="each step", pessimism=p, seeds=1, patients=(100_000, 1_000_000))
            for p in _PRESETS
        ),
    ),
    patients=(1_000, 10_000, 100_000, 1_000_000),
    epsilons=(0.5, 1.0, 4.0, None),
)
QUICK = Scale(
    variants=(
        Variant(counts="outcomes", clusters=5, pessimism=None, seeds=1),
        Variant(counts="once a patient", clusters=5, seeds=1),
        Variant(counts="pooled", clusters=5, horizon=SHORT, seeds=1),
        Variant(counts="each step", clusters=5, seeds=1),
    ),
    patients=(300,),
    epsilons=(1.0, None),
)
