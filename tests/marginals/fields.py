"""A field over bins that is small enough for brute force."""

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.marginals.model import Field

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
    shares = np.exp(logs)
    return np.asarray(shares / shares.sum())
