import math

import torch

from distributed_privrl.models.fragment_inputs import condition_features, sinusoids, step_features
from distributed_privrl.models.layers import Waves
from distributed_privrl.models.sizes import STEP_FEATURES


def test_sinusoids_are_the_formula() -> None:
    values = torch.tensor([[0.0, 1.0, 2.5]])
    features = sinusoids(values, count=6, shortest=2.0, longest=8.0)
    assert features.shape == (1, 3, 6)
    waves = [2 * math.pi * 2.5 / length for length in (2.0, 4.0, 8.0)]
    expected = [math.sin(w) for w in waves] + [math.cos(w) for w in waves]
    torch.testing.assert_close(features[0, 2], torch.tensor(expected))


def test_neighbouring_diffusion_steps_differ() -> None:
    features = step_features(torch.arange(1, 201) / 200)
    assert features.shape == (200, STEP_FEATURES)
    distances = torch.cdist(features, features) + 10 * torch.eye(200)
    assert distances.min() > 0.3


def test_condition_says_whether_there_is_one() -> None:
    condition = torch.tensor([[0.0, 0.0], [0.0, -0.5]])
    expected = torch.tensor([[0.0, 0.0, 0.0], [0.0, -0.5, 1.0]])
    assert torch.equal(condition_features(condition, Waves(0)), expected)
    shown = condition_features(condition, Waves(3))
    assert torch.equal(shown, torch.cat((Waves(3)(condition), expected[:, -1:]), dim=1))
