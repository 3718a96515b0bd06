"""Prompts of public knowledge: topics, keywords and lengths, by templates that are data.

Reference: DP-RFT, section 3.1 and appendix C (tables 4 and 5).
"""

import importlib.resources
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator

from distributed_privrl.core.config import PositiveInt, StrictModel, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.core.yaml_files import mapping_in, read_yaml
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language
from distributed_privrl.text.public_text import PublicDocument

Ask = Callable[[str], str]
"""Answers a request, as an instruct model does."""
_NUMBERED = re.compile(r"^\s*(?:\d+[.):]|[-*])\s*")
_WORD = re.compile(r"[a-z][a-z-]{3,}")


@dataclass(frozen=True, kw_only=True)
class Prompt:
    """What a model is shown before it writes.

    Args:
        text: all of it.
        topic: what the text is to be about.
        keywords: that it is to use.
        words: how long it is to be; None: the prompt does not say.
    """

    text: str
    topic: str = ""
    keywords: tuple[str, ...] = ()
    words: int | None = None


class Lengths(StrictModel):
    """How long texts are to be, in words: normal, or even between the ends where no mean is."""

    low: PositiveInt = Field(description="fewest words")
    high: PositiveInt = Field(description="most words")
    multiple: PositiveInt = Field(default=1, description="lengths are rounded to multiples")
    mean: float | None = Field(default=None, description="of a normal distribution")
    deviation: float = Field(default=0.0, ge=0, description="of a normal distribution")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if not self.low <= self.high:
            raise ValueError("low must not be above high")
        return self

    def draw(self, generator: np.random.Generator) -> int:
        """Return a length; what a normal distribution puts outside the ends is drawn again."""
        while True:
            drawn = (
                generator.uniform(self.low, self.high)
                if self.mean is None
                else generator.normal(self.mean, self.deviation)
            )
            if self.low <= drawn <= self.high or (self.deviation == 0 and self.mean is not None):
                rounded = self.multiple * round(drawn / self.multiple)
                return min(self.high, max(self.low, rounded))


class StageTemplate(StrictModel):
    """One stage of the pipeline: a field of the prompt, from a list or from a model's answer."""

    makes: str = Field(description="name of the field")
    choices: tuple[str, ...] = Field(default=(), description="its values, where they are known")
    ask: str = Field(default="", description="request for values; may name earlier fields")
    reply: Literal["lines", "whole"] = Field(
        default="lines", description="one value a line, or the answer as a whole"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.choices) == bool(self.ask):
            raise ValueError("needs either choices or ask")
        return self


class PromptTemplate(StrictModel):
    """How prompts for one kind of text are made."""

    stages: tuple[StageTemplate, ...] = Field(default=(), description="in their order")
    prompt: str = Field(description="may name the stages' fields and {words}")
    topic: str = Field(description="field that is the topic")
    keywords: str | None = Field(default=None, description="field of keywords, between commas")
    lengths: Lengths | None = Field(default=None, description="None: the prompt names no length")
    gate: Mapping[str, Any] = Field(default_factory=dict, description="arguments of `Gate`")


def templates(path: Path | None = None) -> dict[str, PromptTemplate]:
    """Return templates by name: the paper's, or those of a YAML file.

    Raises:
        ConfigError: the file has no templates.
        StorageError: it cannot be read.
    """
    if path is None:
        kept = importlib.resources.files("distributed_privrl.text") / "prompt_templates.yaml"
        found = mapping_in(kept.read_text(encoding="utf-8"), source=kept.name)
    else:
        found = read_yaml(path)
    source = "prompt templates" if path is None else str(path)
    return {
        name: validate(PromptTemplate, one, source=f"{source}: {name}")
        for name, one in found.items()
    }


def asked_prompts(
    template: PromptTemplate, count: int, *, ask: Ask | None, streams: Streams, most: int = 100
) -> list[Prompt]:
    """Return prompts by the stages of a template.

    Args:
        template: how.
        count: of the prompts.
        ask: instruct model; None where each stage has choices.
        streams: public randomness.
        most: values that a stage may ask for and keep, for each value of the stages before.

    Raises:
        ConfigError: a stage asks and nobody answers, or a model's answers are empty.
    """
    generator = streams.numpy("prompts")
    fields: list[dict[str, str]] = [{}]
    for stage in template.stages:
        if stage.ask and ask is None:
            raise ConfigError(
                f"stage {stage.makes!r} asks a model: name an instruct model, or give choices"
            )
        kept = [fields[row] for row in generator.permutation(len(fields))[:count]]
        fields = [
            one | {stage.makes: value} for one in kept for value in _values(stage, one, ask, most)
        ]
        if not fields:
            raise ConfigError(f"the model's answers for {stage.makes!r} are empty: ask another one")
    rows = [generator.permutation(len(fields)) for _ in range(math.ceil(count / len(fields)))]
    chosen = np.concatenate(rows)[:count]
    return [_filled(template, fields[row], generator) for row in chosen]


def drawn_prompts(
    prompts: Sequence[Prompt], count: int, generator: np.random.Generator
) -> list[Prompt]:
    """Return as many prompts, drawn evenly: none comes again before all have come."""
    rounds = math.ceil(count / len(prompts))
    rows = np.concatenate([generator.permutation(len(prompts)) for _ in range(rounds)])
    return [prompts[row] for row in rows[:count]]


def document_prompts(
    template: PromptTemplate,
    documents: Sequence[PublicDocument],
    count: int,
    *,
    streams: Streams,
    keywords: int = 3,
) -> list[Prompt]:
    """Return prompts whose topics and keywords are those of public documents, mixed anew.

    Args:
        template: with the fields ``topic`` and ``keywords``, and no stages.
        documents: public ones.
        count: of the prompts.
        streams: public randomness.
        keywords: of each prompt.

    Raises:
        ConfigError: no document has keywords.
    """
    told = [one for one in facts(documents, keywords=2 * keywords) if one[1]]
    if not told:
        raise ConfigError("public documents have no keywords: give longer ones")
    generator = streams.numpy("prompts")
    found = []
    for row in generator.integers(len(told), size=count):
        topic, words = told[row]
        picked = generator.permutation(len(words))[:keywords]
        given = {"topic": topic, "keywords": ", ".join(words[one] for one in sorted(picked))}
        found.append(_filled(template, given, generator))
    return found


def described(
    template: PromptTemplate, documents: Sequence[PublicDocument], *, keywords: int = 3
) -> list[str]:
    """Return each public document behind a prompt that fits it: what a small model learns from."""
    told = facts(documents, keywords=keywords)
    texts = []
    for document, (topic, words) in zip(documents, told, strict=True):
        length = _near(template.lengths, len(document.text.split()))
        fields = {"topic": topic, "keywords": ", ".join(words)}
        texts.append(_text(template, fields, length) + document.text)
    return texts


def facts(
    documents: Sequence[PublicDocument], *, keywords: int
) -> list[tuple[str, tuple[str, ...]]]:
    """Return each document's topic, its module, and its rarest words, weighed by their number.

    Reference: Spärck Jones, "A statistical interpretation of term specificity" (1972).
    """
    counts = [Counter(_WORD.findall(document.text.lower())) for document in documents]
    holders = Counter(word for count in counts for word in count)
    found = []
    for document, count in zip(documents, counts, strict=True):
        weights = {
            word: number * math.log(len(documents) / holders[word])
            for word, number in count.items()
            if holders[word] > 1
        }
        best = sorted(weights, key=lambda word: (-weights[word], word))[:keywords]
        topic = " ".join(document.module.replace("_", " ").split(".")[:3]).strip()
        found.append((topic, tuple(best)))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class InstructModel:
    """A local instruct model that answers the stages' requests.

    Args:
        language: e.g. `Language.load` of a folder.
        streams: public randomness.
        most_tokens: of an answer.
    """

    language: Language
    streams: Streams
    most_tokens: int = 1024

    def __call__(self, request: str) -> str:
        """Return the model's answer; the same request gets the same one."""
        generator = torch.Generator().manual_seed(self.streams.integer(request))
        drawn = generate(
            self.language, [request], most_tokens=self.most_tokens, generator=generator
        )
        return drawn.texts[0]


def _values(
    stage: StageTemplate, fields: Mapping[str, str], ask: Ask | None, most: int
) -> Sequence[str]:
    if stage.choices or ask is None:
        return stage.choices
    answer = ask(stage.ask.format_map({**fields, "most": most}))
    lines = answer.splitlines() if stage.reply == "lines" else [" ".join(answer.split())]
    cleaned = [_NUMBERED.sub("", line).strip() for line in lines]
    return list(dict.fromkeys(line for line in cleaned if line))[:most]


def _filled(
    template: PromptTemplate, fields: Mapping[str, str], generator: np.random.Generator
) -> Prompt:
    words = template.lengths.draw(generator) if template.lengths else None
    listed = fields.get(template.keywords, "") if template.keywords else ""
    return Prompt(
        text=_text(template, fields, words),
        topic=fields.get(template.topic, ""),
        keywords=tuple(one.strip() for one in listed.split(",") if one.strip()),
        words=words,
    )


def _text(template: PromptTemplate, fields: Mapping[str, str], words: int | None) -> str:
    try:
        return template.prompt.format_map({**fields, "words": words})
    except KeyError as error:
        raise ConfigError(f"the prompt names {error}, which no stage makes: add a stage") from error


def _near(lengths: Lengths | None, words: int) -> int | None:
    if lengths is None:
        return None
    return min(lengths.high, max(lengths.low, lengths.multiple * round(words / lengths.multiple)))
