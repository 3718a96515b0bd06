"""Numbers that networks learn, counted from their sizes and in the networks themselves."""

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from torch import nn

from distributed_privrl.data.encoding import TransitionEncoder
from distributed_privrl.data.layout import RowCoding
from distributed_privrl.data.scaling import Scaling
from distributed_privrl.methods.privorl.binning import foreseen_bins
from distributed_privrl.models.autoregressive import AutoregressiveNetwork
from distributed_privrl.models.denoiser import ResidualMLPDenoiser
from distributed_privrl.models.dynamics import DynamicsEnsemble
from distributed_privrl.models.sizes import (
    denoiser_weights,
    dense_weights,
    factor_weights,
    transformer_weights,
    unet_weights,
)
from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer
from distributed_privrl.models.trajectory_unet import TrajectoryUNet

SEED = torch.Generator().manual_seed(0)


def learned(network: nn.Module) -> int:
    return sum(one.numel() for one in network.parameters() if one.requires_grad)


@pytest.mark.parametrize("hidden", [(), (5,), (5, 7)])
@pytest.mark.parametrize("frequencies", [0, 3])
@pytest.mark.parametrize("context", [0, 4])
def test_factors(hidden: tuple[int, ...], frequencies: int, context: int) -> None:
    coding = RowCoding(action_margin=0.2)
    spaces = Box(-1, 1, (2,)), Box(-1, 1, (1,))
    width = TransitionEncoder(*spaces, Scaling(offset=np.zeros(7), scale=np.ones(7)), coding).width
    encoder = TransitionEncoder(
        *spaces, Scaling(offset=np.zeros(width), scale=np.ones(width)), coding
    )
    bins = foreseen_bins(encoder, 9)
    network = AutoregressiveNetwork(
        bins, hidden=hidden, column_frequencies=frequencies, context=context, generator=SEED
    )
    sizes = {"hidden": hidden, "column_frequencies": frequencies, "context": context}
    assert factor_weights(bins, **sizes) == learned(network)
    network.fix(["next_observation"])
    assert factor_weights(bins, **sizes, fixed=["next_observation"]) == learned(network)


def test_categories_are_counted_once() -> None:
    spaces = Discrete(5), Discrete(3)
    width = 2 * 5 + 3 + 2
    scaling = Scaling(offset=np.zeros(width), scale=np.ones(width))
    bins = foreseen_bins(TransitionEncoder(*spaces, scaling, RowCoding()), 9)
    assert [one.size for one in bins.variables] == [5, 3, 9, 5, 2]


def test_the_denoiser() -> None:
    sizes = {
        "width": 12,
        "depth": 3,
        "time_width": 8,
        "fourier_features": 4,
        "column_frequencies": 2,
    }
    network = ResidualMLPDenoiser(7, **sizes, generator=SEED)
    assert denoiser_weights(7, **sizes) == learned(network)


def test_the_ensemble_of_dynamics() -> None:
    network = DynamicsEnsemble(4, 3, members=2, hidden=(6, 5), generator=SEED)
    assert 2 * dense_weights((4, 6, 5, 2 * 3)) == learned(network)


FRAGMENT_SIZES = pytest.mark.parametrize(
    "sizes",
    [
        {"width": 8, "depth": 1, "column_frequencies": 0},
        {"width": 4, "depth": 2, "column_frequencies": 3},
        {"width": 12, "depth": 4, "column_frequencies": 1},
        {"width": 64, "depth": 3, "column_frequencies": 0},
    ],
)
STEP_SIZES = pytest.mark.parametrize("parts", [(1, 1), (4, 2), (3, 7)])


@FRAGMENT_SIZES
@STEP_SIZES
@pytest.mark.parametrize("horizon", [8, 16])
def test_the_transformer(sizes: dict[str, int], parts: tuple[int, int], horizon: int) -> None:
    network = TrajectoryTransformer(*parts, horizon=horizon, **sizes, heads=4, generator=SEED)
    assert transformer_weights(*parts, **sizes) == learned(network)


@FRAGMENT_SIZES
@STEP_SIZES
@pytest.mark.parametrize("horizon", [8, 16])
def test_the_unet(sizes: dict[str, int], parts: tuple[int, int], horizon: int) -> None:
    network = TrajectoryUNet(*parts, horizon=horizon, **sizes, generator=SEED)
    assert unet_weights(*parts, **sizes) == learned(network)
