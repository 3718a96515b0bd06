"""A field over bins that is small enough for brute force, and a model without any relation."""

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.columns import TableColumns
from distributed_privrl.marginals.coupling import Couplings
from distributed_privrl.marginals.drawing import TableModel
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.shapes import column_shape

SIZES = (2, 3, 2, 4)


def some_field(hidden: int = 0) -> Field:
    """Return a field with a loop: no order draws it without a table of three columns."""
    source = np.random.default_rng(1)
    cliques = [(0, 1), (1, 2), (2, 3), (0, 3)]
    return Field(
        SIZES, {one: source.normal(size=[SIZES[i] for i in one]) for one in cliques}, hidden
    )


def joint(field: Field) -> NDArray[np.float64]:
    """Return the probability of every row, by brute force."""
    logs = np.zeros(field.sizes)
    for clique, values in field.potentials.items():
        shape = [size if i in clique else 1 for i, size in enumerate(field.sizes)]
        logs = logs + values.reshape(shape)
    shares = np.exp(logs - logs.max())
    return np.asarray(shares / shares.sum())


def model_of(columns: TableColumns, lengths: list[float] | None = None) -> TableModel:
    """Return a model without any relation: every bin is as likely as another."""
    shapes = []
    for column in columns.columns:
        noisy = np.full(column.size + 0, 100.0)
        own = columns[column.like] if column.like is not None else column
        shapes.append(column_shape(own, noisy[: own.size], deviation=1.0, most_bins=64))
    sizes = tuple(shape.size for shape in shapes)
    counted = np.array([] if lengths is None else lengths, np.float64)
    field = Field(sizes, {(i,): np.zeros(size) for i, size in enumerate(sizes)})
    return TableModel(columns, tuple(shapes), Couplings({}), field, counted)
