"""What a language model writes: its prompts, and as many texts that pass the gate as are asked."""

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import torch

from distributed_privrl.core.errors import ConfigError, UselessError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.config import UNTUNED, ProseConfig, TextConfig
from distributed_privrl.methods.dprft.language import language_of, public_documents
from distributed_privrl.stages.devices import device_of
from distributed_privrl.text.gate import Gate, InstructJudge
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import (
    InstructModel,
    Prompt,
    PromptTemplate,
    asked_prompts,
    document_prompts,
    templates,
)

Batches = Iterator[tuple[list[Prompt], list[str]]]
"""Prompts, and a text for each."""
_BATCH, _EXCERPT_WORDS = 64, 200
_FRUITLESS = 20
"""Batches in a row of which no text passes the gate, before writing is given up."""


def prompt_template(config: TextConfig) -> PromptTemplate:
    """Return the template of prompts.

    Raises:
        ConfigError: there is none of that name.
    """
    asked = config.training.prompts
    known = templates(asked.file)
    if asked.template not in known:
        raise ConfigError(
            f"training.prompts.template={asked.template}: choose one of {', '.join(known)}"
        )
    return known[asked.template]


def prompts_of(config: TextConfig) -> list[Prompt]:
    """Return the prompts that steps draw from, of public knowledge alone.

    Raises:
        ConfigError: the template, its model or the packages do not give any.
    """
    asked, template = config.training.prompts, prompt_template(config)
    streams = Streams(config.seed).child("prompts")
    packages, language = asked.packages, config.model.language
    if not packages and not template.stages and isinstance(language, ProseConfig):
        packages = language.packages
    if packages:
        documents = public_documents(packages, _EXCERPT_WORDS)
        return document_prompts(template, documents, asked.count, streams=streams)
    ask = None
    if asked.instruct is not None:
        ask = InstructModel(language=_instruct_model(config, asked.instruct), streams=streams)
    return asked_prompts(template, asked.count, ask=ask, streams=streams)


def gate_of(config: TextConfig) -> Gate:
    """Return what texts must pass, by public facts alone.

    Raises:
        ConfigError: a judge is named, and the gate is off.
        StorageError: the judge's folder holds no model.
    """
    training = config.training
    if not training.gate:
        if training.judge is not None:
            raise ConfigError("training.judge rates texts for the gate, which is off: leave it out")
        return Gate(most_repetition=1.0)
    judge = None
    if training.judge is not None:
        judge = InstructJudge(language=_instruct_model(config, training.judge))
    return Gate(**prompt_template(config).gate, judge=judge)


def write_passing(config: TextConfig, batches: Batches, path: Path) -> None:
    """Write as many texts that pass the gate as the run releases, a JSON object a line.

    Args:
        config: of the run.
        batches: that they are taken from.
        path: of the file.

    Raises:
        UselessError: no text passes the gate.
    """
    _write(path, _passing(gate_of(config), batches, config.output.size))


def untuned_writers(config: TextConfig) -> dict[str, Callable[[Path], None]]:
    """Return what writes texts of the model before its training, by the name of its file.

    They are as many as the run announces, by the same gate; what a model writes that hardly
    anything passes of is fewer.

    Privacy: the model, its prompts and the stream are public.
    """

    def write(path: Path) -> None:
        language = language_of(config, prompt_template(config))
        batches = drawn_texts(config, language, Streams(config.seed).child("untuned"))
        count, found = min(config.output.untuned, config.output.size), list[str]()
        with suppress(UselessError):
            found.extend(_passing(gate_of(config), batches, count))
        _write(path, found)

    return {UNTUNED: write} if config.output.untuned else {}


def _write(path: Path, texts: Iterable[str]) -> None:
    lines = [json.dumps({"text": text}, ensure_ascii=False) + "\n" for text in texts]
    write_atomically(path, "".join(lines))


def loaded_language(config: TextConfig, folder: Path | str) -> Language:
    """Return the model of a folder, on the device that the run computes on."""
    return Language.load(folder).to(device_of(config.runtime))


def _instruct_model(config: TextConfig, folder: str) -> Language:
    loaded = Language.load(folder, dtype=config.training.instruct_dtype)
    return loaded.to(device_of(config.runtime))


def drawn_texts(config: TextConfig, language: Language, streams: Streams) -> Batches:
    """Yield prompts, and the model's texts for them, without end."""
    prompts = prompts_of(config)
    for batch in itertools.count():
        drawn = streams.numpy(f"prompts {batch}").integers(len(prompts), size=_BATCH)
        chosen = [prompts[row] for row in drawn]
        texts = generate(
            language,
            [prompt.text for prompt in chosen],
            most_tokens=config.training.most_tokens,
            generator=torch.Generator().manual_seed(streams.integer(f"tokens {batch}")),
        ).texts
        yield chosen, list(texts)


def _passing(gate: Gate, batches: Batches, count: int) -> Iterator[str]:
    """Yield so many texts that pass the gate."""
    left, fruitless = count, 0
    for prompts, texts in batches:
        passed = gate.passes(prompts, texts)
        kept = [text for text, good in zip(texts, passed, strict=True) if good][:left]
        yield from kept
        left, fruitless = left - len(kept), 0 if kept else fruitless + 1
        if not left:
            return
        if fruitless == _FRUITLESS:
            raise UselessError(
                f"none of the texts of {_FRUITLESS} batches in a row passed the gate: the model"
                " writes nothing that its prompts ask for; raise most_tokens, or take another"
                " language"
            )
