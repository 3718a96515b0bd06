"""Generation with a cache draws from the model's distribution, whatever the padding."""

import pytest
import torch

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.text.generation import FREE, generate
from distributed_privrl.text.policy import PolicyWithValue
from tests.text.small import SIZES, language

PROMPTS = ["a", "the environment of an agent and its actions", ""]


def source(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_the_cache_and_padding_change_no_probability() -> None:
    known = language()
    with torch.no_grad():
        for parameter in known.model.parameters():
            parameter.mul_(3)
    drawn = generate(known, PROMPTS, most_tokens=9, generator=source())
    judged = PolicyWithValue(known)(drawn)
    for row, prompt in enumerate(PROMPTS):
        before = known.encode([prompt])[0] or [known.end]
        tokens = drawn.tokens[row][drawn.mask[row].bool()]
        whole = torch.tensor([*before, *tokens.tolist()])[None]
        logits = known.model(input_ids=whole).logits[0, len(before) - 1 : -1]
        logs = logits.log_softmax(-1)
        expected = logs.gather(1, tokens[:, None])[:, 0]
        torch.testing.assert_close(
            judged.log_probabilities[row][drawn.mask[row].bool()], expected, atol=1e-4, rtol=1e-4
        )
        entropy = torch.distributions.Categorical(logits=logs).entropy()
        torch.testing.assert_close(
            judged.entropies[row][drawn.mask[row].bool()], entropy, atol=1e-4, rtol=1e-4
        )


def test_draws_follow_the_distribution() -> None:
    known = language()
    with torch.no_grad():
        known.model.transformer.wte.weight.mul_(12)
    rows = 4000
    drawn = generate(known, ["agent"] * rows, most_tokens=1, generator=source())
    logits = known.model(input_ids=torch.tensor(known.encode(["agent"]))).logits[0, -1]
    expected = logits.softmax(-1).detach() * rows
    counts = torch.bincount(drawn.tokens[:, 0], minlength=len(expected)).float()
    seen = expected > 5
    assert seen.sum() > 5
    chi = ((counts - expected) ** 2 / expected)[seen].sum()
    assert 0.3 < float(chi / seen.sum()) < 2


def test_the_same_stream_gives_the_same_texts_and_the_end_ends_them() -> None:
    known = language()
    with torch.no_grad():  # the end token is likely
        known.model.transformer.wte.weight[known.end] = 25 * known.model.transformer.ln_f.weight
        known.model.transformer.ln_f.bias.fill_(0.01)
    one, other, third = (
        generate(known, PROMPTS * 8, most_tokens=12, generator=source(seed)) for seed in (0, 0, 1)
    )
    assert one.texts == other.texts != third.texts
    for tokens, mask in zip(one.tokens.tolist(), one.mask.tolist(), strict=True):
        written = tokens[: sum(mask)]
        assert known.end not in written[:-1]
        assert set(tokens[sum(mask) :]) <= {known.pad}
        assert mask == sorted(mask, reverse=True)
    assert 1 < one.mask.sum(1).float().mean() < 12


def test_given_tokens_stay_and_blanks_are_filled() -> None:
    known = language()
    given = [[7, FREE, 9], [FREE, FREE], [5] * 20]
    drawn = generate(known, PROMPTS, most_tokens=6, generator=source(), given=given)
    assert drawn.tokens[0, [0, 2]].tolist() == [7, 9]
    assert drawn.tokens[2].tolist() == [5] * 6
    assert drawn.mask.sum(1).tolist()[2] == 6
    assert drawn.mask.sum(1).tolist()[0] <= 3


def test_a_completion_must_leave_room_for_its_prompt() -> None:
    with pytest.raises(ConfigError, match="most_tokens 48"):
        generate(language(), ["a"], most_tokens=SIZES.context, generator=source())
    long = generate(language(), ["word " * 90], most_tokens=8, generator=source())
    assert long.prompts.tokens.shape[1] == SIZES.context - 8
