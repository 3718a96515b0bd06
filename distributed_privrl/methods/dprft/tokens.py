"""Documents as rows of tokens, in the process that holds them, and the loss of such a row."""

import hashlib
import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.silence import of_any
from distributed_privrl.data.corpus import CorpusRef, Document, documents
from distributed_privrl.data.episode_reader import Keep
from distributed_privrl.data.hashing import mix
from distributed_privrl.data.shards import EncodedShard, ShardRef, group_by_unit
from distributed_privrl.text.extra import text_package
from distributed_privrl.text.generation import context_of
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt

_READ_AT_ONCE = 256


@dataclass(frozen=True, kw_only=True)
class TokenCoding:
    """From a text to rows of tokens; public facts alone.

    A row is a prompt with a piece of a text behind it. Numbers are tokens, counted from 1: negative
    ones are given, positive ones learned, and zeros follow.

    Args:
        tokenizer: JSON of a tokenizer of the package tokenizers.
        end: token that ends a text.
        vocabulary: tokens that the model knows; a tokenizer may have more, of which a text that
            holds one of their names would end the run, and tell of itself.
        piece: most tokens that a row learns.
        prompts: tokens of public prompts.
        words: that each of them asks for; 0: it does not say.
    """

    tokenizer: str
    end: int
    vocabulary: int
    piece: int
    prompts: tuple[tuple[int, ...], ...]
    words: tuple[int, ...]

    @classmethod
    def of(cls, language: Language, prompts: Sequence[Prompt], *, piece: int) -> Self:
        """Return the coding of a language; a prompt that is too long loses its beginning.

        Raises:
            ConfigError: its tokenizer has no JSON, or no room is left for a prompt.
        """
        room = context_of(language.model) - piece
        backend = getattr(language.tokenizer, "backend_tokenizer", None)
        if backend is None or room < 1:
            raise ConfigError(
                f"training.most_tokens={piece} of {context_of(language.model)} that the model takes"
                " leave no room for a prompt: lower it"
                if backend
                else "the language's tokenizer is none of the package tokenizers: take a fast one"
            )
        known = int(language.model.get_input_embeddings().num_embeddings)
        if language.end >= known:
            raise ConfigError(
                f"the tokenizer ends texts with token {language.end}, of which the model knows"
                f" {known}: resize the model's embeddings, or name another end token"
            )
        coded = language.encode_prompts([one.text for one in prompts])
        coded = [[token for token in one if token < known] for one in coded]
        return cls(
            tokenizer=backend.to_str(),
            end=language.end,
            vocabulary=known,
            piece=piece,
            prompts=tuple(tuple(one[-room:]) or (language.end,) for one in coded),
            words=tuple(one.words or 0 for one in prompts),
        )

    @property
    def width(self) -> int:
        """Numbers of a row."""
        return max(map(len, self.prompts)) + self.piece

    def tokens(self, tokenizer: Any, text: str) -> list[int]:
        """Return the tokens of a text that the model knows; none where the tokenizer fails.

        Args:
            tokenizer: made from `tokenizer`.
            text: any.

        Privacy: no text raises, as that would tell of it.
        """
        coded: list[int] = of_any(lambda: tokenizer.encode(text, add_special_tokens=False).ids, [])
        return [token for token in coded if token < self.vocabulary]

    def rows(self, tokens: Sequence[int], words: int) -> NDArray[np.float32]:
        """Return the rows (K, `width`) of a text of so many words, from its tokens.

        Privacy: they depend on the text alone: a unit's id may be the number of a line, which
        changes where an earlier one is gone.
        """
        whole = [*tokens, self.end]
        own = hashlib.blake2b(np.array(whole, "<i8").tobytes(), digest_size=8).digest()
        number = int.from_bytes(own, "little")
        pieces = [whole[start : start + self.piece] for start in range(0, len(whole), self.piece)]
        found = np.zeros((len(pieces), self.width), np.float32)
        for row, piece in enumerate(pieces):
            prompt = self._prompt(words * len(piece) // len(whole), number + row)
            found[row, : len(prompt)] = -1 - np.array(prompt)
            found[row, len(prompt) : len(prompt) + len(piece)] = 1 + np.array(piece)
        return found

    def _prompt(self, words: int, number: int) -> tuple[int, ...]:
        """Return one of the prompts that ask for about so many words."""
        missed = np.abs(np.array(self.words) - words)
        nearest = np.flatnonzero(missed == missed.min())
        hashed = mix(np.array([number % 2**64], np.uint64))[0]
        return self.prompts[nearest[int(hashed) % len(nearest)]]


@dataclass(frozen=True, kw_only=True)
class StoredTexts:
    """A corpus as rows of tokens; see `rounds.worker.ShardSource`. It holds no text.

    Args:
        ref: of the dataset, as the ledger knows it.
        corpus: where its documents are.
        coding: of their texts.
    """

    ref: ShardRef
    corpus: CorpusRef
    coding: TokenCoding

    def __call__(self, keep: Keep | None = None) -> EncodedShard:
        """Read the documents of the units that ``keep`` chooses, and drop their texts.

        Privacy: a unit's rows depend on its own documents alone, and not on its id.
        """
        tokenizer = text_package("tokenizers").Tokenizer.from_str(self.coding.tokenizer)
        rows, units = [np.zeros((0, self.coding.width), np.float32)], list[int]()
        for batch in _batches(documents(self.corpus)):
            ids = np.array([one.unit_id for one in batch], np.uint64)
            chosen = np.ones(len(batch), bool) if keep is None else keep(ids)
            for one in itertools.compress(batch, chosen):
                tokens = self.coding.tokens(tokenizer, one.text)
                own = self.coding.rows(tokens, len(one.text.split()))
                rows.append(own)
                units += [one.unit_id] * len(own)
        return group_by_unit(
            np.concatenate(rows),
            np.ones(len(units), bool),
            np.array(units, np.uint64),
            max_rows_per_unit=self.ref.max_rows_per_unit,
        )


def _batches(read: Iterator[Document]) -> Iterator[list[Document]]:
    while batch := list(itertools.islice(read, _READ_AT_ONCE)):
        yield batch


class NextTokens(nn.Module):
    """A causal language model from rows of tokens (M, L) to the logits of the next ones (M, L, V).

    Args:
        model: of transformers; nothing in it is drawn, whatever its dropout.
    """

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model.eval()

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits; all places are told to count, or padding would be warned of."""
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        logits: Tensor = self.model(
            input_ids=tokens,
            attention_mask=torch.ones_like(tokens),
            position_ids=places,
            use_cache=False,
        ).logits
        return logits


@dataclass(frozen=True, kw_only=True)
class NetworkOf:
    """Builds the network of a model in a worker's process, with any weights; picklable.

    Args:
        configuration: of the model, JSON.
        device: that it computes on.
    """

    configuration: str
    device: str = "cpu"

    @classmethod
    def of(cls, language: Language, device: str) -> Self:
        """Return what builds the language's network."""
        told = language.model.config.to_dict() | {"dtype": "float32"}
        return cls(configuration=json.dumps(told, default=str), device=device)

    def __call__(self) -> NextTokens:
        """Return the network; parameters come with each round."""
        package, told = text_package("transformers"), json.loads(self.configuration)
        with torch.random.fork_rng():  # its first weights are replaced
            model = package.AutoModelForCausalLM.from_config(package.AutoConfig.for_model(**told))
        return NextTokens(model).to(self.device)


@dataclass(frozen=True)
class NextTokenLoss:
    """The mean cross entropy of a row's learned tokens, in nats; rows never meet in it.

    Padding lies behind all that counts, and a causal model does not look there.
    """

    draw_count: int = 0

    def __call__(self, module: nn.Module, rows: Tensor, draws: Tensor) -> Tensor:
        """Return the losses (M,) of rows (M, L) of `TokenCoding`."""
        tokens = (rows.abs().long() - 1).clamp(min=0)
        counted = (rows[:, 1:] > 0).to(rows.dtype)
        logits = module(tokens)[:, :-1].transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, tokens[:, 1:], reduction="none") * counted
        return losses.sum(1) / counted.sum(1).clamp(min=1)
