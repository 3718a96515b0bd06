import pytest
import torch
import torch.nn.functional as F

from distributed_privrl.models import trajectory_unet
from distributed_privrl.models.trajectory_unet import TrajectoryUNet


def test_size_is_the_docstrings() -> None:
    network = TrajectoryUNet(4, 2, horizon=32, generator=torch.Generator().manual_seed(0))
    assert sum(parameter.numel() for parameter in network.parameters()) == 1_078_925
    assert "1,078,925" in str(TrajectoryUNet.__doc__)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 5, 8])
def test_linear_layer_on_windows_is_a_convolution(stride: int, length: int) -> None:
    source = torch.Generator().manual_seed(0)
    steps = torch.randn(2, length, 3, generator=source, dtype=torch.float64)
    weight = torch.randn(4, 3, 3, generator=source, dtype=torch.float64)  # (out, in, kernel)
    windows = trajectory_unet._windows(steps, stride=stride)
    ours = windows @ weight.permute(2, 1, 0).reshape(9, 4)
    theirs = F.conv1d(steps.transpose(1, 2), weight, padding=1, stride=stride)
    torch.testing.assert_close(ours, theirs.transpose(1, 2))


def test_levels_halve_the_steps_rounded_up_and_double_the_width() -> None:
    network = TrajectoryUNet(1, 1, horizon=5, width=4, generator=torch.Generator().manual_seed(0))
    shapes = []
    for block in (*network.down, *network.up):
        block.register_forward_hook(lambda _m, _i, output: shapes.append(output.shape[1:]))
    network(torch.zeros(2, 5, 6), torch.ones(2), torch.zeros(2, 6), torch.ones(2, 5))
    assert shapes == [(5, 4), (3, 8), (2, 16), (3, 8), (5, 4)]
