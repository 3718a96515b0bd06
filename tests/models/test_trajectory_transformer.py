import pytest
import torch
import torch.nn.functional as F

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.models.fragment_inputs import sinusoids
from distributed_privrl.models.trajectory_transformer import TrajectoryTransformer


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("width", "depth", "parameters"), [(256, 6, 5_830_157), (64, 4, 276_749)])
def test_sizes_are_the_docstrings(width: int, depth: int, parameters: int) -> None:
    network = TrajectoryTransformer(
        4, 2, horizon=32, width=width, depth=depth, generator=generator()
    )
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert f"{parameters:,}" in str(TrajectoryTransformer.__doc__)


def test_fragment_is_five_tokens_a_step_and_six() -> None:
    network = TrajectoryTransformer(
        3, 2, horizon=32, width=16, depth=2, heads=2, generator=generator()
    )
    shapes = []
    network.blocks[0].register_forward_hook(lambda _m, x, _o: shapes.append(x[0].shape))
    network(torch.zeros(2, 32, 11), torch.ones(2), torch.zeros(2, 11), torch.ones(2, 32))
    assert shapes == [(2, 5 * 32 + 6, 16)]


def test_each_part_is_embedded_and_decoded_by_its_own_layers() -> None:
    network = TrajectoryTransformer(
        3, 2, horizon=2, width=8, depth=1, heads=2, generator=generator()
    )
    assert [mlp[0].in_features for mlp in network.embed] == [3, 2, 1, 3, 2]  # type: ignore[index, union-attr]
    assert [mlp[2].out_features for mlp in network.decode] == [3, 2, 1, 3, 2]  # type: ignore[index, union-attr]
    inputs = torch.zeros(1, 2, 11), torch.ones(1), torch.zeros(1, 11), torch.ones(1, 2)
    before = network(*inputs)
    with torch.no_grad():
        network.decode[2][2].bias += 1  # type: ignore[index, operator]
    moved = (network(*inputs) - before)[0, 0]
    torch.testing.assert_close(moved, F.one_hot(torch.tensor(5), 11).float())


def test_positions_are_the_papers_indices() -> None:
    network = TrajectoryTransformer(
        1, 1, horizon=3, width=8, depth=1, heads=2, generator=generator()
    )
    # time, condition x 5; then the states of steps 0, 1, 2, the actions, ...
    order = [*range(6), 6, 11, 16, 7, 12, 17, 8, 13, 18, 9, 14, 19, 10, 15, 20]
    expected = sinusoids(torch.tensor(order).float(), count=64, shortest=10.0, longest=1000.0)
    torch.testing.assert_close(network.positions, expected)


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="heads=3 must divide width=16"):
        TrajectoryTransformer(1, 1, horizon=2, width=16, heads=3, generator=generator())
