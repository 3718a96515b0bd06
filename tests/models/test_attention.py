"""The block of transformers: what a token sees, and that it is the same one at a time."""

import torch
import torch.nn.functional as F

from distributed_privrl.models.attention import AttentionBlock, Past


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_attention_is_softmax_of_scaled_products_over_seen_tokens() -> None:
    block = AttentionBlock(8, 2, generator()).double()
    hidden = torch.randn(2, 5, 8, generator=generator(1), dtype=torch.float64)
    keys = torch.tensor([[True, True, False, True, False], [True] * 5])
    fused = block.query_key_value(F.layer_norm(hidden, (8,)))
    heads = []
    for head in range(2):
        columns = slice(4 * head, 4 * head + 4)
        query, key, value = (fused[..., 8 * part : 8 * part + 8][..., columns] for part in range(3))
        scores = (query @ key.transpose(1, 2) / 2).masked_fill(~keys[:, None], -torch.inf)
        heads.append(scores.softmax(dim=-1) @ value)
    after = hidden + block.mix(torch.cat(heads, dim=-1))
    expected = after + block.narrow(F.gelu(block.widen(F.layer_norm(after, (8,)))))
    torch.testing.assert_close(block(hidden, keys[:, None, None]), expected)


def test_a_causal_token_sees_itself_and_those_before_it() -> None:
    block = AttentionBlock(8, 2, generator())
    hidden = torch.randn(2, 5, 8, generator=generator(1))
    whole = block(hidden, causal=True)
    for tokens in range(1, 6):
        torch.testing.assert_close(block(hidden[:, :tokens])[:, -1], whole[:, tokens - 1])


def test_one_token_after_the_other_is_the_same() -> None:
    block = AttentionBlock(8, 2, generator())
    hidden = torch.randn(2, 5, 8, generator=generator(1))
    past: Past | None = None
    for token, expected in enumerate(block(hidden, causal=True).unbind(dim=1)):
        found, past = block.follow(hidden[:, token : token + 1], past)
        torch.testing.assert_close(found[:, 0], expected)
