"""Sums of a field over the cells of its cliques, against the whole table and against mbi."""

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.private_pgm import model_of, names_of
from distributed_privrl.marginals.junction_tree import JunctionTree
from distributed_privrl.marginals.loss import Loss, Measured
from distributed_privrl.marginals.model import Field
from distributed_privrl.marginals.tables import Clique

SHAPES: dict[str, tuple[tuple[int, ...], list[Clique]]] = {
    "one column": ((4,), [(0,)]),
    "columns alone": ((2, 3, 4), [(0,), (1,), (2,)]),
    "a chain": ((2, 3, 4, 5), [(0, 1), (1, 2), (2, 3)]),
    "a star": ((3, 2, 4, 2, 5), [(0, 1), (0, 2), (0, 3), (0, 4)]),
    "a circle": ((2, 3, 4, 3, 2), [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4)]),
    "all pairs": ((2, 3, 2, 4), [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]),
    "some in others": ((2, 3, 4, 2), [(1,), (0, 1, 2), (1, 2), (2, 3), (0, 1, 2), (0,)]),
    "two trees": ((2, 3, 4, 3, 2, 5), [(0, 2), (1, 3, 4), (3, 5), (4,)]),
    "a grid": ((2, 3, 2, 3, 2, 3), [(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)]),
}


def potentials_of(
    sizes: tuple[int, ...], cliques: list[Clique], *, spread: float
) -> list[NDArray[np.float64]]:
    source = np.random.default_rng(7)
    return [spread * source.normal(size=[sizes[i] for i in clique]) for clique in cliques]


def by_the_whole_table(
    sizes: tuple[int, ...], cliques: list[Clique], potentials: list[NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """Return each clique's share of all cells, which are as many as all columns have."""
    table = np.zeros(sizes)
    for clique, values in zip(cliques, potentials, strict=True):
        table = table + values.reshape([k if i in clique else 1 for i, k in enumerate(sizes)])
    table = np.exp(table - table.max())
    table /= table.sum()
    columns = range(len(sizes))
    return [table.sum(axis=tuple(i for i in columns if i not in clique)) for clique in cliques]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_sums_are_those_of_the_whole_table(shape: str, spread: float) -> None:
    sizes, cliques = SHAPES[shape]
    potentials = potentials_of(sizes, cliques, spread=spread)
    tree = JunctionTree(sizes, cliques, 500.0)
    flat = np.concatenate([one.ravel() for one in potentials])
    tree.sums(flat[::-1].copy())  # leaves nothing behind
    found = tree.sums(flat)
    for span, wanted in zip(
        tree.spans, by_the_whole_table(sizes, cliques, potentials), strict=True
    ):
        np.testing.assert_allclose(found[span], 500 * wanted.ravel(), rtol=1e-9, atol=1e-12)


def test_sums_are_those_of_the_library() -> None:
    """As mbi has them, where twelve columns are too many for a whole table."""
    source = np.random.default_rng(2)
    sizes = tuple(source.integers(2, 9, 12).tolist())
    cliques: list[Clique] = [(i, i + 1) for i in range(11)] + [(0, 4, 7), (2, 9), (5, 11)]
    potentials = potentials_of(sizes, cliques, spread=3.0)
    theirs = model_of(Field(sizes, dict(zip(cliques, potentials, strict=True)))).marginals
    tree = JunctionTree(sizes, cliques, 1000.0)
    found = tree.sums(np.concatenate([one.ravel() for one in potentials]))
    for clique, span in zip(cliques, tree.spans, strict=True):
        wanted = 1000 * np.asarray(theirs[names_of(clique)].values)
        np.testing.assert_allclose(found[span], wanted.ravel(), rtol=1e-9)


def test_no_cell_is_too_rare() -> None:
    """A cell of e^-2000 of the weight in one clique is likely where another makes up for it."""
    low, high = np.zeros((2, 2)), np.zeros((2, 2))
    low[1], high[:, 1] = -2000.0, 2000.0
    tree = JunctionTree((2, 2, 2), [(0, 1), (1, 2)], 1.0)
    lifted = np.array([[0.0, 0.0], [2000.0, 2000.0]])
    found = tree.sums(np.concatenate([low.T.ravel(), lifted.ravel()]))
    np.testing.assert_allclose(found[tree.spans[0]], 0.25)
    tree = JunctionTree((2, 2, 2), [(0, 1), (1, 2)], 1.0)
    found = tree.sums(np.concatenate([np.zeros(4), high.ravel()]))
    np.testing.assert_allclose(found[tree.spans[1]], [0, 0.5, 0, 0.5])


@pytest.mark.parametrize("shape", SHAPES)
def test_slopes_are_those_of_the_loss(shape: str) -> None:
    """In the sums, where each clique's loss is of its own sums alone."""
    sizes, cliques = SHAPES[shape]
    source, measured = np.random.default_rng(4), []
    for place, clique in enumerate(cliques):
        extents = [sizes[i] for i in clique]
        counts = source.gamma(2.0, 9.0, extents)
        if place % 3 == 1:
            lines = tuple(np.repeat(np.eye(2), [1, k - 1], axis=0) for k in extents)
            measured.append(Measured(clique, counts, 3.0, lines))
        else:
            measured.append(Measured(clique, counts, source.uniform(1, 9, extents)))
    loss = Loss(sizes, measured, 300.0)
    start = np.concatenate([one.ravel() for one in potentials_of(sizes, cliques, spread=1.0)])
    there = loss.at(start)
    wanted = 0.0
    for one, span in zip(measured, loss.spans, strict=True):
        found = there.sums[span].reshape(one.counts.shape)
        missed = found - one.counts
        if one.lines:
            for line in one.lines:
                missed = np.tensordot(missed, line, axes=(0, 0))
        wanted += float(np.square(missed / one.deviations).sum()) / 2
    assert there.loss == pytest.approx(wanted)
    way = 1e-4 * source.normal(size=len(start))
    one, other = loss.at(start + way), loss.at(start - way)
    along = there.slopes @ (one.sums - other.sums)
    assert one.loss - other.loss == pytest.approx(along, rel=1e-3, abs=1e-6)


def test_sums_of_random_fields_are_those_of_the_whole_table() -> None:
    """Columns of one bin, cliques twice or in others, forests, circles, of any logarithms."""
    source = np.random.default_rng(11)
    for case in range(120):
        sizes = tuple(source.integers(1, 7, int(source.integers(1, 6))).tolist())
        columns = range(len(sizes))
        cliques: list[Clique] = [(i,) for i in columns if source.random() < 0.3]
        for _ in range(int(source.integers(1, 8))):
            several = min(len(sizes), int(source.integers(1, 5)))
            cliques.append(tuple(sorted(source.choice(columns, several, replace=False).tolist())))
        cliques.append(cliques[0])
        cliques += [(i,) for i in columns if all(i not in one for one in cliques)]
        source.shuffle(cliques)
        cliques = [tuple(one) for one in cliques]
        potentials = potentials_of(sizes, cliques, spread=(0.0, 1.0, 30.0, 1e4)[case % 4])
        tree = JunctionTree(sizes, cliques, 1.0)
        found = tree.sums(np.concatenate([one.ravel() for one in potentials]))
        wanted = by_the_whole_table(sizes, cliques, potentials)
        np.testing.assert_allclose(
            found, np.concatenate([one.ravel() for one in wanted]), atol=1e-9, err_msg=f"{case}"
        )


def test_a_chain_may_be_as_long_as_a_table_is_wide() -> None:
    """Of 1,050 columns, each with its neighbour, the sums of every pair are those of two."""
    cliques: list[Clique] = [(i, i + 1) for i in range(1049)]
    tree = JunctionTree((2,) * 1050, cliques, 8.0)
    found = tree.sums(np.zeros(4 * len(cliques)))
    np.testing.assert_allclose(found, 2.0)
