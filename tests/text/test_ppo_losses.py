"""The equations of the training, against numbers computed by hand."""

import math

import pytest
import torch

from distributed_privrl.text.ppo_losses import (
    clipped_policy_loss,
    clipped_value_loss,
    divergence,
    generalised_advantages,
    mixed_scores,
    next_kl_weight,
    token_rewards,
    whitened,
)

MASK = torch.tensor([[1.0, 1, 1], [1, 1, 0]])


def test_the_score_comes_with_the_last_token_and_each_pays_for_straying() -> None:
    log_policy = torch.tensor([[-1.0, -2, -3], [-1, -1, -9]])
    log_reference = torch.tensor([[-1.5, -2, -2], [-2, -1, -1]])
    rewards = token_rewards(torch.tensor([5.0, 7]), log_policy, log_reference, MASK, kl_weight=0.1)
    expected = torch.tensor([[-0.05, 0, 5 + 0.1], [-0.1, 7, 0]])
    torch.testing.assert_close(rewards, expected)


def test_a_likelihood_counts_in_units_of_the_scores_and_leaves_their_mean() -> None:
    scores, likelihoods = torch.tensor([1.0, 3, 5, 7]), torch.tensor([-4.0, -2, -2, -4])
    mixed = mixed_scores(scores, likelihoods, weight=0.2)
    torch.testing.assert_close(mixed, scores + 0.2 * math.sqrt(5) * torch.tensor([-1, 1, 1, -1]))
    assert mixed_scores(scores, torch.full((4,), -3.0), weight=0.2).tolist() == scores.tolist()


def test_advantages_by_hand() -> None:
    rewards = torch.tensor([[0.0, 0, 1], [0, 2, 50]])
    values = torch.tensor([[0.5, 0.4, 0.2], [1, 1, 70]])
    found = generalised_advantages(rewards, values, MASK, discount=0.9, trace_decay=0.5)
    third = 1 - 0.2
    second = 0.9 * 0.2 - 0.4 + 0.45 * third
    first = 0.9 * 0.4 - 0.5 + 0.45 * second
    other = 0.9 * 1 - 1 + 0.45 * (2 - 1)
    torch.testing.assert_close(found, torch.tensor([[first, second, third], [other, 1, 0]]))


def test_undiscounted_advantages_are_what_is_left_of_the_return() -> None:
    rewards, values = torch.tensor([[1.0, 2, 3]]), torch.tensor([[9.0, 8, 7]])
    found = generalised_advantages(rewards, values, MASK[:1], discount=1, trace_decay=1)
    assert found.tolist() == [[6 - 9, 5 - 8, 3 - 7]]


def test_the_clipped_loss_by_hand() -> None:
    ratios = torch.tensor([[1.5, 0.5, 1.1], [1.5, 0.5, 99]])
    advantages = torch.tensor([[1.0, 1, 1], [-1, -1, 99]])
    loss = clipped_policy_loss(ratios.log(), torch.zeros(2, 3), advantages, MASK, clip_range=0.2)
    gains = [1.2, 0.5, 1.1, -1.5, -0.8]  # the worse of the two at each token
    assert float(loss) == pytest.approx(-sum(gains) / 5)


def test_a_ratio_beyond_the_range_is_not_pushed_further() -> None:
    log_new = torch.tensor([[math.log(1.5), math.log(1.1), 0]], requires_grad=True)
    loss = clipped_policy_loss(
        log_new, torch.zeros(1, 3), torch.ones(1, 3), MASK[1:], clip_range=0.2
    )
    loss.backward()
    assert log_new.grad is not None
    assert log_new.grad[0].tolist() == pytest.approx([0, -1.1 / 2, 0])


def test_the_value_loss_by_hand() -> None:
    new, old = torch.tensor([[2.0, 0.1, 0]]), torch.zeros(1, 3)
    loss = clipped_value_loss(new, old, torch.tensor([[3.0, 1, 0]]), MASK[1:], clip_range=0.5)
    assert float(loss) == pytest.approx(0.5 * ((3 - 0.5) ** 2 + 0.9**2) / 2)


def test_the_divergence_estimate_is_right_on_average() -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.2, 0.3, 0.5])
    drawn = torch.multinomial(
        p, 40_000, replacement=True, generator=torch.Generator().manual_seed(0)
    )[None]
    found = divergence(p.log()[drawn], q.log()[drawn], torch.ones_like(drawn))
    assert float(found) == pytest.approx(float((p * (p / q).log()).sum()), rel=0.03)


def test_whitened_numbers_have_mean_zero_and_variance_one_over_the_mask() -> None:
    found = whitened(torch.tensor([[1.0, 2, 3], [4, 5, 1e6]]), MASK)
    counted = found[MASK.bool()]
    assert float(counted.mean()) == pytest.approx(0, abs=1e-6)
    assert float(counted.var(correction=0)) == pytest.approx(1, rel=1e-5)
    assert float(found[1, 2]) == 0
    assert whitened(torch.ones(2, 3), MASK).tolist() == [[0] * 3] * 2


@pytest.mark.parametrize(
    ("kl", "factor"), [(0.1, 1), (0.11, 1.05), (9, 1.1), (0, 0.95), (math.nan, 1.1)]
)
def test_the_price_follows_the_divergence_by_a_bounded_share(kl: float, factor: float) -> None:
    found = next_kl_weight(2.0, kl=kl, target=0.1, gain=0.5, least=1.9)
    assert found == pytest.approx(2 * factor)
