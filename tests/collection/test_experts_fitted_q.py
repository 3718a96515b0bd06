"""Q-learning of many experts from one memory."""

import numpy as np
import pytest
import torch
from torch.nn.functional import smooth_l1_loss

from distributed_privrl.collection import experts_fitted_q as fitted_q
from distributed_privrl.collection.experts_fitted_q import FittedQConfig, FittedQTrainer
from distributed_privrl.core.random import Streams
from distributed_privrl.environments.hiv import EFFICACIES, HivTreatment, treat


def test_scaled_values_lead_back() -> None:
    values = torch.tensor([-3.0, -0.01, 0.0, 0.5, 90.0, 8000.0], dtype=torch.float64)
    torch.testing.assert_close(fitted_q._unscaled(fitted_q._scaled(values)), values)
    expected = np.sign(-3.0) * (np.sqrt(4.0) - 1) - 0.03
    assert float(fitted_q._scaled(values)[0]) == pytest.approx(expected)


def test_experts_learn_from_rows_of_their_noise_with_their_own_penalties() -> None:
    settings = {
        "first_penalty": np.array([1e6, 2e6, 3e6]),
        "second_penalty": np.array([1e6, 0.0, 2e6]),
        "efficacy_noise": np.array([0.0, 0.01, 0.0]),
    }
    config = FittedQConfig(max_steps=3, episodes=6, batch_size=8)
    trainer = FittedQTrainer(config, HivTreatment())
    learner = fitted_q._Learner(config, HivTreatment(), trainer.normalisation, settings, Streams(0))
    expected = [[0, 0.49, 0.09, 0.58], [0, 0.98, 0, 0.98], [0, 1.47, 0.18, 1.65]]
    np.testing.assert_allclose(learner._penalties, expected, rtol=1e-6)
    learner.act(all_random=True)
    offset, scale = trainer.normalisation
    for memory, rows in zip(learner._memories, (12, 6), strict=True):
        assert memory is not None
        assert len(memory.actions) == rows
        before = 10 ** (memory.inputs * scale + offset).double().numpy()
        after = (memory.following * scale + offset).numpy()
        exact = HivTreatment().observe(treat(before, EFFICACIES[memory.actions.numpy()]))
        close = np.abs(exact - after).max(axis=1) < 1e-4
        given = memory.actions.numpy() > 0
        assert close[~given].all()
        assert close[given].all() == (rows == 12)
    batch = learner._batch()
    assert torch.equal(batch.inputs[0], batch.inputs[2])
    assert not torch.equal(batch.inputs[0], batch.inputs[1])


def test_a_gradient_step_is_towards_the_double_q_target(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "first_penalty": np.array([2e4, 3e4]),
        "second_penalty": np.array([2e3, 2e3]),
        "efficacy_noise": np.zeros(2),
    }
    config = FittedQConfig(max_steps=4, episodes=2, batch_size=5, polyak=0.5, learning_rate=1e-5)
    trainer = FittedQTrainer(config, HivTreatment())
    learner = fitted_q._Learner(config, HivTreatment(), trainer.normalisation, settings, Streams(0))
    learner.act(all_random=True)
    batch = learner._batch()
    monkeypatch.setattr(learner, "_batch", lambda: batch)
    values, target = learner.values, learner._target

    def loss() -> list[float]:
        found = []
        for expert in range(2):
            worth = values(batch.inputs)[expert].gather(1, batch.actions[expert][:, None])[:, 0]
            best = start_values[expert].argmax(dim=1, keepdim=True)
            paid = learner._penalties[expert][batch.actions[expert]]
            later = fitted_q._unscaled(start_target[expert].gather(1, best)[:, 0])
            goal = fitted_q._scaled(batch.earned[expert] - paid + 0.99 * later)
            found.append(float(smooth_l1_loss(worth, goal)))
        return found

    with torch.no_grad():
        start_values, start_target = values(batch.following), target(batch.following)
        before, weights = loss(), [one.clone() for one in target.tensors]
    learner.learn()
    with torch.no_grad():
        assert all(one < two for one, two in zip(loss(), before, strict=True))
        for old, new, source in zip(weights, target.tensors, values.tensors, strict=True):
            torch.testing.assert_close(new, (old + source) / 2)
