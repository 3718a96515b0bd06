"""Joint counts that nobody chooses one after the other: each step releases one vector of integers.

A vector is one release: its sensitivity is fixed before the first draw, and whatever is in it, even
what follows from earlier releases, keeps to it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.plan import (
    MarginalsPlan,
    StepRelease,
    calibrated,
    column_release,
    in_units,
    integer_sensitivity,
    schedule_of,
)
from distributed_privrl.marginals.stage import ASSUMED_COLUMNS, ForeseenTable
from distributed_privrl.marginals.tables import Clique
from distributed_privrl.privacy.mechanisms import IntegerGaussianRelease
from distributed_privrl.privacy.units import (
    PrivacyBudget,
    Relation,
    UnitCount,
    check_delta_for_units,
)
from distributed_privrl.stages.effort import Effort
from distributed_privrl.stages.verdict import Grade, Verdict

_ROUNDING = 1e-12


@dataclass(frozen=True, kw_only=True)
class Vector:
    """What a step releases after the columns.

    Args:
        sensitivity: in L2, of all its integers together, under the run's relation.
        share: of the budget.
        count: joint counts in it, as far as they are known before.
    """

    sensitivity: float
    share: float
    count: int = 0


@dataclass(frozen=True, kw_only=True)
class OneShot:
    """How a run spends its budget.

    Args:
        columns_share: part of the budget that counts single columns.
        vectors: of the steps after the columns, the joint counts last.
        cliques: joint counts that are measured whatever was released.
        joint_scale: of the last vector's noise, in the noise of a joint count's cell.
        about: further facts for whoever reads the plan.
        noise: in words, what the joint counts are.
    """

    columns_share: float
    vectors: tuple[Vector, ...]
    cliques: tuple[Clique, ...] = ()
    joint_scale: float = 1.0
    about: Mapping[str, Any]
    noise: str

    def releases(
        self, relation: Relation, histograms: int, factor: float
    ) -> tuple[StepRelease, ...]:
        """Return the releases of each step.

        At factor 1 all add up to one Gaussian release of noise multiplier 1: rho-zCDP with rho of
        1/2, of which each has its share.
        """
        steps = [
            column_release(relation, histograms=histograms, share=self.columns_share, factor=factor)
        ]
        for vector in self.vectors:
            release = IntegerGaussianRelease(
                sensitivity=vector.sensitivity,
                noise_multiplier=factor / math.sqrt(vector.share),
            )
            steps.append(StepRelease(vector=release, count=vector.count))
        return tuple(steps)


def columns_of(table: ForeseenTable) -> tuple[int, int]:
    """Return how many columns are drawn, and how many histograms are counted; or what is assumed.

    Args:
        table: of the plan.
    """
    known = table.columns
    return (ASSUMED_COLUMNS,) * 2 if known is None else (known.drawn, known.histograms)


def one_shot_plan(
    config: RunConfig,
    shot: OneShot,
    *,
    table: ForeseenTable,
    units: UnitCount,
    epsilon: float | None,
    spent: float,
) -> MarginalsPlan:
    """Return the plan: a step that counts all columns, then one for each vector.

    Args:
        config: of the run.
        shot: how the budget is spent.
        table: its columns. Where they are not known for certain, the plan says so.
        units: how many there are.
        epsilon: of the stage; None: without privacy.
        spent: epsilon that the run spends before it.

    Raises:
        ConfigError: a share is none, or no noise keeps the budget.
        UnsafeError: delta is not below 1/units.
    """
    if min(shot.columns_share, *(one.share for one in shot.vectors)) <= 0:
        raise ConfigError("training: the shares leave nothing for joint counts: lower them")
    columns, histograms = columns_of(table)
    counts = tuple(vector.count for vector in shot.vectors)
    named = "columns_assumed" if table.assumed else "columns"
    details: dict[str, Any] = {named: columns, **shot.about}
    common: dict[str, Any] = {
        "units": units,
        "accountant": config.privacy.accountant,
        "steps": 1 + len(counts),
        "spare": 0,
        "counts": counts,
        "cliques": shot.cliques,
        "effort": Effort(joint_counts=sum(counts) or columns),
    }
    if epsilon is None:
        return MarginalsPlan(budget=None, details=details, **common)
    delta, relation = config.privacy.delta, Relation(config.privacy.relation)
    check_delta_for_units(delta, units)
    budget = PrivacyBudget(epsilon=epsilon, delta=delta, unit=config.data.unit, relation=relation)
    drawn = calibrated(
        lambda factor: shot.releases(relation, histograms, factor),
        budget,
        config.privacy.accountant,
    )
    first, last = drawn[0].gaussian, drawn[-1].gaussian
    noise = {
        "column_noise_units": in_units(first.standard_deviation),
        "joint_noise_units": in_units(shot.joint_scale * last.standard_deviation),
    }
    of_what = f"for an assumed table of {columns} columns" if table.assumed else ""
    if not of_what:
        assert table.columns is not None
        of_what = f"of {columns} columns ({table.columns.in_words})"
    return MarginalsPlan(
        budget=budget,
        spent=spent,
        schedule=schedule_of(drawn),
        releases=drawn,
        details=details | noise,
        verdict=_not_judged(config.method, units.value, noise),
        noise=f"Gaussian integers, {shot.noise} {of_what}",
        **common,
    )


def _not_judged(method: str, units: int, noise: Mapping[str, float]) -> Verdict:
    """Return the verdict: what noise leaves was measured of `marginals` alone."""
    cells = {name.split("_")[0]: units / (3 * value) for name, value in noise.items()}
    return Verdict(
        grade=Grade.NOT_JUDGED,
        reason=(
            f"of {units} units, {cells['column']:.3g} bins of a column and {cells['joint']:.3g}"
            " cells of a joint count can be told from noise; which tables survive that was"
            f" measured of method marginals, not of {method}"
        ),
        figures={"bins": cells["column"], "cells": cells["joint"]},
    )


def weighted(counts: Sequence[NDArray[np.int64]], weights: Sequence[int]) -> NDArray[np.int64]:
    """Return joint counts, each times a whole weight, one after the other ``(N,)``."""
    parts = [weight * one.reshape(-1) for weight, one in zip(weights, counts, strict=True)]
    return np.concatenate(parts)


def check_paid(release: IntegerGaussianRelease, weights: Sequence[int], relation: Relation) -> None:
    """Refuse a vector of joint counts that a unit moves by more than is paid for.

    Args:
        release: that pays.
        weights: of the joint counts.
        relation: of neighbouring datasets.

    Raises:
        UnsafeError: it would be.
    """
    needed = integer_sensitivity(relation) * math.sqrt(sum(one * one for one in weights))
    if needed > release.sensitivity * (1 + _ROUNDING):
        raise UnsafeError(
            f"the plan pays for a sensitivity of {release.sensitivity:.6g}, the joint counts have"
            f" {needed:.6g}: they are not those that it was drawn up for"
        )


def split(
    flat: NDArray[np.int64], cliques: Sequence[Clique], sizes: Sequence[int]
) -> list[NDArray[np.int64]]:
    """Return the joint counts that a vector has one after the other, each of its own shape."""
    shapes = [tuple(sizes[i] for i in clique) for clique in cliques]
    ends = np.cumsum([math.prod(shape) for shape in shapes])
    parts = np.split(flat, ends[:-1])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def resolved(cliques: Sequence[Clique], columns: TableColumns) -> list[Clique]:
    """Return joint counts of the codings that are drawn, where a number has two.

    Args:
        cliques: of the table before anything was released, in which numbers are as they are.
        columns: of the table, of whose codings those that nothing is drawn from are unused.
    """
    used = {one: change for one, change in columns.codings if one in columns.unused}
    return [tuple(sorted(used.get(i, i) for i in clique)) for clique in cliques]
