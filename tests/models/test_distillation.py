import torch

from distributed_privrl.models.distillation import RandomNetworkDistillation


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_score_is_the_squared_distance_of_the_two_networks() -> None:
    module = RandomNetworkDistillation(3, outputs=4, generator=generator())
    rows = torch.randn(5, 3, generator=generator(1))
    expected = (module.predictor(rows) - module.target(rows)).square().sum(dim=1)
    torch.testing.assert_close(module.scores(rows), expected.detach())
    assert module.target(rows).shape == (5, 4)


def test_repeated_rows_become_less_novel_than_new_ones() -> None:
    module = RandomNetworkDistillation(6, generator=generator())
    seen = torch.randn(256, 6, generator=generator(1)) * 0.3 - 1
    unseen = torch.randn(256, 6, generator=generator(2)) * 0.3 + 1
    before = module.scores(seen).mean() / module.scores(unseen).mean()
    for _ in range(100):
        module.update(seen)
    after = module.scores(seen).mean() / module.scores(unseen).mean()
    assert 0.2 < before < 5
    assert after < 0.2


def test_update_returns_the_scores_from_before_and_trains_the_predictor_alone() -> None:
    module = RandomNetworkDistillation(3, generator=generator())
    rows = torch.randn(64, 3, generator=generator(1))
    target = [parameter.clone() for parameter in module.target.parameters()]
    before = module.scores(rows)
    torch.testing.assert_close(module.update(rows), before)
    assert not torch.allclose(module.scores(rows), before)
    for old, new in zip(target, module.target.parameters(), strict=True):
        assert torch.equal(old, new)


def test_outliers_are_clipped() -> None:
    module = RandomNetworkDistillation(3, clip=2.0, generator=generator())
    scores = module.scores(torch.tensor([[2.0, -2.0, 0.0], [1e30, -1e9, 0.0]]))
    assert scores[0] == scores[1]


def test_target_output_varies_with_the_row() -> None:
    module = RandomNetworkDistillation(6, generator=generator())
    rows = torch.randn(1000, 6, generator=generator(1))
    spread = module.target(rows).std(dim=0).mean()
    assert 0.1 < spread < 10


def test_training_goes_on_where_its_tensors_were_taken() -> None:
    batches = [torch.randn(32, 3, generator=generator(seed)) for seed in range(4)]
    whole, fresh = (RandomNetworkDistillation(3, generator=generator()) for _ in range(2))
    for rows in batches[:3]:
        whole.update(rows)
    kept = {name: value.clone() for name, value in whole.tensors().items()}
    expected = whole.update(batches[3])
    after = whole.scores(batches[0])
    fresh.restore(kept)
    assert torch.equal(fresh.update(batches[3]), expected)
    assert torch.equal(fresh.scores(batches[0]), after)
    assert not torch.equal(RandomNetworkDistillation(3, generator=generator()).update(rows), after)


def test_the_tensors_of_an_untrained_predictor_are_a_start() -> None:
    first, second = (RandomNetworkDistillation(3, generator=generator()) for _ in range(2))
    rows = torch.randn(32, 3, generator=generator(1))
    second.restore(first.tensors())
    for _ in range(2):
        assert torch.equal(first.update(rows), second.update(rows))
