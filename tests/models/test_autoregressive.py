"""The autoregressive model: its likelihood is a distribution, its draws follow it."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.autoregressive import AutoregressiveNetwork
from distributed_privrl.models.row_bins import RowBins, Variable

NUMBER = Variable(start=0, kind="number", marks=(-1.0, 0.0, 0.5, 3.0), floored=True)
CHOICE = Variable(start=1, kind="one_hot", marks=(0.0, 1.0, 2.0))
LEVEL = Variable(start=4, kind="level", marks=(-1.0, 1.0))
BINS = RowBins((NUMBER, CHOICE, LEVEL))


def network(*, seed: int = 0, scale: float = 1.0) -> AutoregressiveNetwork:
    made = AutoregressiveNetwork(
        BINS, hidden=(8,), column_frequencies=2, generator=torch.Generator().manual_seed(seed)
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(scale)
    return made


def every_row() -> torch.Tensor:
    """A row for each combination of categories, numbers in the middle of their bins."""
    rows = []
    for number, choice, level in itertools.product((-0.5, 0.25, 1.75), range(3), (-1.0, 1.0)):
        hot = [-1.0] * 3
        hot[choice] = 1.0
        rows.append([number, *hot, level])
    return torch.tensor(rows)


def test_categories_of_literal_rows() -> None:
    rows = torch.tensor(
        [
            [-7.0, -1, 1, -1, -1],  # below all bins: the first
            [0.0, 1, -1, -1, 1],  # an edge belongs to the bin above it
            [0.49, -1, -1, 1, 0.2],
            [99.0, 0.1, 0.3, 0.2, -0.2],  # above all bins: the last; the largest column
        ]
    )
    assert BINS.categories(rows).tolist() == [[0, 1, 0], [1, 0, 1], [1, 2, 1], [2, 1, 0]]
    assert BINS.width == 5


def test_networks_see_numbers_from_minus_one_to_one() -> None:
    rows = torch.tensor([[-1.0, -1, 1, -1, -1], [3.0, 1, -1, -1, 1], [1.0, 1, -1, -1, 1]])
    assert BINS.inputs(rows)[:, 0].tolist() == [-1, 1, 0]
    assert BINS.inputs(rows)[0, 1:].tolist() == [-1, 1, -1, -1]
    assert BINS.inputs(torch.full((1, 5), 50.0)).max() == 1


def test_probabilities_of_all_combinations_sum_to_one() -> None:
    made = network(scale=3.0)
    probabilities = (-made(every_row()).sum(dim=1).double()).exp()
    assert probabilities.sum().item() == pytest.approx(1, abs=1e-5)
    assert probabilities.max() > 2 * probabilities.min()


def test_a_fresh_network_is_nearly_uniform() -> None:
    found = network()(every_row()).sum(dim=1)
    np.testing.assert_allclose(found.detach(), math.log(3 * 3 * 2), atol=0.2)


def test_a_variable_sees_the_columns_before_it_alone() -> None:
    made = network(scale=3.0)
    rows = every_row()[:1]
    shown = made.bins.inputs(rows)
    for index, one in enumerate(BINS.variables):
        changed = shown.clone()
        changed[:, one.start :] = 0.37
        torch.testing.assert_close(made._logits(index, shown), made._logits(index, changed))
    changed = shown.clone()
    changed[:, 0] = 0.37
    assert not torch.equal(made._logits(1, shown), made._logits(1, changed))


def test_draws_follow_the_likelihood() -> None:
    made, rows = network(scale=3.0), every_row()
    drawn = made.draw(60_000, generator=torch.Generator().manual_seed(1))
    code = torch.tensor([6, 2, 1])
    seen = torch.bincount((BINS.categories(drawn) * code).sum(dim=1), minlength=18) / len(drawn)
    expected = torch.zeros(18)
    expected[(BINS.categories(rows) * code).sum(dim=1)] = (-made(rows).sum(dim=1)).exp().detach()
    assert (seen - expected).abs().max() < 0.01


def test_numbers_lie_evenly_in_their_bins_and_nothing_outside() -> None:
    drawn = network().draw(30_000, generator=torch.Generator().manual_seed(1))
    number, hot, level = drawn[:, 0], drawn[:, 1:4], drawn[:, 4]
    assert number.min() >= -1
    assert number.max() <= 3
    last = number[number >= 0.5]
    assert last.mean().item() == pytest.approx(1.75, abs=0.03)
    assert (hot.sum(dim=1) == -1).all()
    assert set(hot.unique().tolist()) == set(level.unique().tolist()) == {-1.0, 1.0}


def test_the_same_generator_draws_the_same_rows() -> None:
    first, second = (
        network().draw(50, generator=torch.Generator().manual_seed(7)) for _ in range(2)
    )
    assert torch.equal(first, second)


def test_what_is_far_less_likely_than_the_likeliest_is_not_drawn() -> None:
    made = network()
    with torch.no_grad():
        made.parts[0][-1].weight.zero_()
        made.parts[0][-1].bias.copy_(torch.tensor([0.0, 3.0, 4.0]))  # 1 : 20 : 55
    generator = torch.Generator().manual_seed(2)
    for floor, expected in ((0.0, {0, 1, 2}), (0.1, {1, 2}), (0.5, {2}), (1.0, {2})):
        drawn = made.draw(3000, generator=generator, floor=floor)
        assert set(BINS.categories(drawn)[:, 0].tolist()) == expected
    rest = BINS.categories(made.draw(20_000, generator=generator, floor=0.1))[:, 0]
    assert (rest == 1).double().mean().item() == pytest.approx(1 / (1 + math.e), abs=0.02)


def test_a_floor_holds_for_floored_variables_alone() -> None:
    others = (replace(CHOICE, floored=True), replace(LEVEL, floored=True))
    bins = RowBins((replace(NUMBER, floored=False), *others))
    made = AutoregressiveNetwork(
        bins, hidden=(), column_frequencies=0, generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        for part in made.parts:
            part[-1].weight.zero_()
            part[-1].bias.copy_(4.0 * (torch.arange(len(part[-1].bias)) == 0))  # 55 : 1
    drawn = made.draw(3000, generator=torch.Generator().manual_seed(2), floor=0.1)
    number, choice, level = bins.categories(drawn).T
    assert set(number.tolist()) == {0, 1, 2}
    assert set(choice.tolist()) == set(level.tolist()) == {0}


def test_context_is_shown_to_every_variable_and_given_columns_stay() -> None:
    made = AutoregressiveNetwork(
        BINS,
        hidden=(8,),
        column_frequencies=0,
        context=2,
        generator=torch.Generator().manual_seed(0),
    )
    rows = every_row()
    contexts = torch.zeros(2, len(rows), 2)
    contexts[1, :, 1] = 1
    losses = [made(rows, context) for context in contexts]
    assert ((losses[0] - losses[1]).abs() > 1e-6).all()
    several = made(rows.expand(3, -1, -1), contexts[1].expand(3, -1, -1))
    torch.testing.assert_close(several[2], losses[1])
    drawn = made.draw(
        len(rows),
        generator=torch.Generator().manual_seed(0),
        context=contexts[0],
        given=rows[:, :4],
    )
    assert torch.equal(drawn[:, :4], rows[:, :4])
    assert set(drawn[:, 4].tolist()) == {-1.0, 1.0}


@pytest.mark.parametrize(
    "variables",
    [
        (),
        (CHOICE,),
        (NUMBER, LEVEL),
        (NUMBER, NUMBER),
    ],
)
def test_variables_lie_side_by_side(variables: tuple[Variable, ...]) -> None:
    with pytest.raises(ConfigError, match="side by side"):
        RowBins(variables)


@pytest.mark.parametrize("marks", [(), (1.0,), (0.0, 0.0), (2.0, 1.0)])
def test_marks_rise(marks: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="column 0: marks must rise"):
        Variable(start=0, kind="number", marks=marks)
