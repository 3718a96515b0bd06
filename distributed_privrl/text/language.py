"""A causal language model and its tokenizer, read from a folder or made small from public text."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.extra import text_package

END, PAD = "<|end|>", "<|pad|>"
"""Names of the token that ends a text and of the one that fills up a batch."""


@dataclass(frozen=True, kw_only=True)
class SmallModelConfig:
    """Sizes of a small GPT-2.

    Args:
        vocabulary: most tokens.
        context: most tokens of a prompt and its completion.
        width: of the hidden states.
        layers: blocks.
        heads: attention heads of a block.
    """

    vocabulary: int = 4096
    context: int = 256
    width: int = 128
    layers: int = 4
    heads: int = 4


@dataclass(frozen=True, kw_only=True, eq=False)
class Batch:
    """Token sequences of different lengths as one rectangle.

    Args:
        tokens: (B, L).
        mask: (B, L), 1 where a token counts.
    """

    tokens: Tensor
    mask: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Language:
    """A transformers causal language model and its tokenizer.

    Args:
        model: e.g. a ``GPT2LMHeadModel``.
        tokenizer: a ``PreTrainedTokenizerFast``, with an end token.
    """

    model: Any
    tokenizer: Any

    @classmethod
    def load(cls, folder: Path | str, *, dtype: str = "float32") -> "Language":
        """Return the model in a folder of transformers; nothing is fetched from a network.

        Args:
            folder: that `save`, or ``save_pretrained`` of both, wrote; or an id on the hub whose
                files lie in the hub's cache.
            dtype: of the weights, e.g. ``bfloat16`` for a large model that is not trained.

        Raises:
            MissingExtraError: transformers is not installed.
            StorageError: the folder holds no causal language model and tokenizer.
        """
        package = text_package("transformers")
        try:
            tokenizer = package.AutoTokenizer.from_pretrained(folder, local_files_only=True)
            model = package.AutoModelForCausalLM.from_pretrained(
                folder, local_files_only=True, dtype=dtype, use_safetensors=True
            )
        except (OSError, ValueError, KeyError) as error:
            raise StorageError(
                f"{folder} holds no causal language model and tokenizer of transformers"
                f" ({str(error).splitlines()[0]}): name a folder that save_pretrained wrote, or"
                " bring a model of the hub with `hf download ID`"
            ) from error
        if tokenizer.pad_token is None:
            tokenizer.pad_token = tokenizer.eos_token
        return cls(model=model.eval(), tokenizer=tokenizer)

    def to(self, device: str) -> "Language":
        """Move the model to a device, e.g. ``cuda``, and return it."""
        self.model.to(device)
        return self

    def save(self, folder: Path) -> None:
        """Write both into a folder that `load` and any tool of transformers read."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return int(self.tokenizer.eos_token_id)

    @property
    def pad(self) -> int:
        """The token that fills up a batch."""
        return int(self.tokenizer.pad_token_id)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device  # type: ignore[no-any-return]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each text, without special ones."""
        if not texts:
            return []
        coded = self.tokenizer(list(texts), add_special_tokens=False, verbose=False)["input_ids"]
        return [list(one) for one in coded]

    def decode(self, tokens: Iterable[Sequence[int]]) -> list[str]:
        """Return the text of each sequence, without special tokens."""
        return [
            self.tokenizer.decode(list(one), skip_special_tokens=True).strip() for one in tokens
        ]

    def encode_prompts(self, prompts: Sequence[str]) -> list[list[int]]:
        """Return the tokens of each prompt, in the model's chat template where it has one."""
        return self.encode([self._in_template(one) for one in prompts])

    def asked(self, prompt: str) -> str | list[dict[str, str]]:
        """Return a prompt as trl renders it: a user's message where there is a chat template."""
        if not getattr(self.tokenizer, "chat_template", None):
            return prompt
        return [{"role": "user", "content": prompt}]

    def _in_template(self, prompt: str) -> str:
        asked = self.asked(prompt)
        if isinstance(asked, str):
            return asked
        return str(
            self.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
        )

    def left_padded(self, sequences: Sequence[Sequence[int]]) -> Batch:
        """Return sequences that end in the same column, as generation needs them."""
        longest = max(1, *(len(one) for one in sequences))
        tokens = torch.full((len(sequences), longest), self.pad)
        mask = torch.zeros(len(sequences), longest, dtype=torch.long)
        for row, one in enumerate(sequences):
            if one:
                tokens[row, -len(one) :] = torch.tensor(one)
                mask[row, -len(one) :] = 1
        return Batch(tokens=tokens.to(self.device), mask=mask.to(self.device))


def trained_tokenizer(texts: Iterable[str], *, config: SmallModelConfig) -> Any:
    """Return a byte-level tokenizer (byte-pair encoding) of public texts; it codes any string.

    Raises:
        MissingExtraError: tokenizers or transformers is not installed.
    """
    tokenizers, transformers = text_package("tokenizers"), text_package("transformers")
    coder = tokenizers.Tokenizer(tokenizers.models.BPE())
    coder.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    coder.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=config.vocabulary,
        special_tokens=[PAD, END],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    coder.train_from_iterator(texts, trainer)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=coder,
        eos_token=END,
        bos_token=END,
        pad_token=PAD,
        model_max_length=config.context,
        clean_up_tokenization_spaces=False,
    )


def small_language(tokenizer: Any, *, config: SmallModelConfig, streams: Streams) -> Language:
    """Return an untrained GPT-2 whose weights come from a named stream.

    Reference: Radford et al., "Language models are unsupervised multitask learners" (2019),
    section 2.3: normal weights, those of residual layers divided by the root of their number.

    Raises:
        MissingExtraError: transformers is not installed.
    """
    package = text_package("transformers")
    sizes = package.GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=config.context,
        n_embd=config.width,
        n_layer=config.layers,
        n_head=config.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():  # transformers draws weights of its own, which are replaced
        model = package.GPT2LMHeadModel(sizes)
    generator = torch.Generator().manual_seed(streams.integer("language"))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim < 2:
                continue
            std = 0.02 / (math.sqrt(2 * config.layers) if name.endswith("c_proj.weight") else 1)
            parameter.normal_(0, std, generator=generator)
    return Language(model=model.eval(), tokenizer=tokenizer)
