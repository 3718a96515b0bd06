"""One flat vector of what is trained, and behind it what is not."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from distributed_privrl.updates.parameters import FlatParameters


class Pair(nn.Module):
    """A network and a copy of it that nobody trains."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(2, 3)
        self.target = copy.deepcopy(self.values).requires_grad_(False)


def test_what_is_not_trained_is_loaded_from_behind_the_parameters() -> None:
    pair = Pair()
    flat = FlatParameters(pair)
    assert (flat.dimension, len(flat.fixed_numpy())) == (9, 9)
    values = np.arange(18, dtype=np.float32)
    flat.load(values)
    assert flat.numpy().tolist() == values[:9].tolist()
    assert flat.fixed_numpy().tolist() == values[9:].tolist()
    assert pair.target.weight.tolist() == [[9, 10], [11, 12], [13, 14]]
    assert pair.values.bias.tolist() == [6, 7, 8]


def test_parameters_alone_leave_the_rest_as_it_is() -> None:
    pair = Pair()
    flat, before = FlatParameters(pair), pair.target.weight.clone()
    flat.load(torch.ones(9))
    assert torch.equal(pair.target.weight, before)
    assert torch.equal(pair.values.weight, torch.ones(3, 2))
    kept = flat.fixed_numpy()
    kept += 1  # a copy: nobody's target moves with it
    assert torch.equal(pair.target.weight, before)


@pytest.mark.parametrize("length", [8, 10, 17, 19])
def test_any_other_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match=r"not \(9,\) or \(18,\)"):
        FlatParameters(Pair()).load(torch.zeros(length))


def test_a_module_without_such_parameters_has_one_length() -> None:
    flat = FlatParameters(nn.Linear(2, 3))
    assert flat.fixed == []
    assert len(flat.fixed_numpy()) == 0
    with pytest.raises(ValueError, match=r"not \(9,\)$"):
        flat.load(torch.zeros(18))
