"""mbi, the library of private-PGM's authors, beside which our estimates stand."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.loss import Measured
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.tables import Clique


def library() -> ModuleType:
    """Return mbi, in float64, in less of which it stalls, and on the CPU."""
    import jax

    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_enable_compilation_cache", False)  # mbi warns of it
    import mbi

    module: ModuleType = mbi
    return module


def names_of(clique: Clique) -> tuple[str, ...]:
    return tuple(map(str, clique))


def model_of(field: Field) -> Any:
    """Return a field as mbi has it."""
    mbi = library()
    domain = mbi.Domain(names_of(tuple(range(len(field.sizes)))), field.sizes)
    potentials = vector_of(domain, field.potentials)
    oracle = mbi.marginal_oracles.message_passing_shafer_shenoy
    return mbi.MarkovRandomField(
        potentials=potentials, marginals=oracle(potentials, 1.0), total=1.0
    )


def vector_of(domain: Any, tables: Any) -> Any:
    """Return tables by clique as mbi has them."""
    mbi = library()
    factors = {
        names_of(clique): mbi.Factor(domain.project(names_of(clique)), values)
        for clique, values in tables.items()
    }
    return mbi.CliqueVector(domain, list(factors), factors)


def estimated_by_mbi(
    sizes: Sequence[int],
    measured: Sequence[Measured],
    *,
    total: float,
    start: Any = None,
    iterations: int = 1000,
) -> Any:
    """Return what mbi's own mirror descent estimates from the same measurements.

    Args:
        sizes: bins of each column.
        measured: noisy sums.
        total: weight of all rows.
        start: potentials by clique; even ones if None.
        iterations: of mbi, each an evaluation of the loss.
    """
    mbi = library()
    domain = mbi.Domain(names_of(tuple(range(len(sizes)))), tuple(sizes))
    unit = min(float(np.min(one.deviations)) for one in measured)  # mbi floors small numbers
    return mbi.estimation.MirrorDescent().estimate(
        domain,
        [_measurement(mbi, one, unit) for one in measured],
        known_total=total / unit,
        iters=iterations,
        warm_start=None if start is None else vector_of(domain, start),
    )


def _measurement(mbi: ModuleType, one: Measured, unit: float) -> Any:
    if one.lines:
        lines, scale = one.lines, float(np.max(one.deviations)) / unit

        def sums(factor: Any) -> Any:
            table = factor.values
            for line in lines:
                table = (table.reshape(len(line), -1).T @ line).reshape(*table.shape[1:], -1)
            return table.reshape(-1)

        counts: NDArray[np.float64] = one.counts
        for line in lines:
            counts = np.tensordot(counts, line, axes=(0, 0))
        return mbi.LinearMeasurement(counts.ravel() / unit, names_of(one.clique), scale, sums)
    deviations = np.broadcast_to(one.deviations, one.counts.shape).ravel() / unit
    scale = float(np.median(deviations))
    weights = scale / deviations
    return mbi.LinearMeasurement(
        one.counts.ravel() / unit * weights,
        names_of(one.clique),
        scale,
        lambda factor: factor.datavector() * weights,
    )
