"""How much work a run is, from public facts alone; a plan makes minutes of it.

On one core, for a GPT-2 of a million weights, writing took 2.4 times as long as its rows alone say,
for which calls are counted, too, and learning 1.5 times.
"""

import json
from dataclasses import dataclass
from pathlib import Path

from distributed_privrl.core.errors import MissingExtraError
from distributed_privrl.methods.dprft.config import (
    DprftConfig,
    FineTuningConfig,
    ProseConfig,
    TextsOutputConfig,
    WritingConfig,
)
from distributed_privrl.stages.effort import Effort
from distributed_privrl.text.aug_pe_config import AugPeOptions
from distributed_privrl.text.extra import text_package

_PROMPT, _PASSING, _BATCH = 32, 0.5, 64
"""Tokens of a prompt, share of texts that pass the gate, and texts that are written at once."""
_CALL = 2.5
"""Steps of a network that a layer's call takes beside its rows."""
_COPIES, _BYTES = 6, 4
"""Of the weights in training: policy, the model before, gradients, two moments, one to spare."""
_MINILM_WEIGHTS, _DOCUMENT = 10_600_000, 100
"""Weights that a token passes in the sentence encoder, and tokens of a document."""
_MINILM_BYTES = 3e8


@dataclass(frozen=True, kw_only=True)
class LanguageSize:
    """Size of a language model.

    Args:
        weights: that a token passes.
        layers: blocks.
    """

    weights: float
    layers: int


def size_of(language: str | ProseConfig) -> LanguageSize | None:
    """Return how large a language model is; None: no folder here says so."""
    if isinstance(language, ProseConfig):
        blocks = 12 * language.layers * language.width**2
        return LanguageSize(
            weights=blocks + language.vocabulary * language.width, layers=language.layers
        )
    folder = _folder_of(language)
    try:
        told = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        layers = int(told.get("num_hidden_layers") or told["n_layer"])
        number = str(told.get("dtype") or told.get("torch_dtype") or "float32")
        stored = sum(one.stat().st_size for one in folder.glob("*.safetensors"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if not stored:
        return None
    return LanguageSize(weights=stored / (4 if number == "float32" else 2), layers=layers)


def _folder_of(language: str) -> Path:
    """Return the folder of a model: itself, or where `hf download` has put it."""
    folder = Path(language)
    if folder.exists():
        return folder
    try:
        kept = text_package("huggingface_hub").try_to_load_from_cache(language, "config.json")
    except (MissingExtraError, ValueError):  # not installed, or no id
        return folder
    return Path(kept).parent if isinstance(kept, str) else folder


def _released(output: TextsOutputConfig) -> int:
    """Return how many texts are written in the end."""
    return output.size + min(output.untuned, output.size)


def _readers(training: WritingConfig) -> Effort:
    """Return the memory of the models that rate texts and make prompts, if it is told."""
    bytes_each = _BYTES if training.instruct_dtype == "float32" else 2
    names = [one for one in (training.judge, training.prompts.instruct) if one is not None]
    sizes = [size_of(name) for name in names]
    weights = sum(size.weights for size in sizes if size is not None)
    return Effort(memory=bytes_each * weights)


def plan_effort(config: DprftConfig, units: int) -> Effort | None:
    """Return the work of a run; None: nothing tells how large its language model is.

    Args:
        config: of the run.
        units: documents are taken to be as many.
    """
    size, training = size_of(config.model.language), config.training
    if size is None:
        return None
    texts = training.prompts_per_step * training.samples
    tokens = _PROMPT + training.most_tokens
    scored = training.steps * texts * tokens * size.weights
    released = _released(config.output) / _PASSING
    turns = training.steps * max(1.0, texts / _BATCH) + released / _BATCH
    written = Effort(
        learned_steps=turns * training.most_tokens * size.layers * _CALL,
        drawn_rows=scored + released * tokens * size.weights,
    )
    total = written + _pretraining(config.model.language, size) + _encoding(config, units)
    total += _readers(training)
    settings = training.settings
    if isinstance(settings, AugPeOptions):
        return total + Effort(memory=_BYTES * size.weights)
    tuned = Effort(
        learned_steps=training.steps * size.layers * _CALL,
        learned_rows=settings.epochs * scored,
        drawn_rows=2 * scored,  # the texts under the policy and under the model before
        memory=_COPIES * _BYTES * size.weights,
    )
    return total + tuned


def fine_tuning_effort(config: FineTuningConfig) -> Effort | None:
    """Return the work of a run of private rounds; None: its language model's size is not told."""
    size, training = size_of(config.model.language), config.training
    if size is None:
        return None
    tokens = _PROMPT + training.most_tokens
    rows = training.rounds * training.expected_batch_size * tokens
    released = _released(config.output) / _PASSING
    own = Effort(
        rounds=training.rounds,
        private_rows=rows * size.weights,
        learned_steps=released / _BATCH * training.most_tokens * size.layers * _CALL,
        drawn_rows=released * tokens * size.weights,
        memory=_COPIES * _BYTES * size.weights,
    )
    return own + _pretraining(config.model.language, size) + _readers(training)


def _pretraining(language: str | ProseConfig, size: LanguageSize) -> Effort:
    if not isinstance(language, ProseConfig):
        return Effort()
    rows = language.steps * language.batch * language.context
    return Effort(
        learned_steps=language.steps * size.layers * _CALL, learned_rows=rows * size.weights
    )


def _encoding(config: DprftConfig, units: int) -> Effort:
    vectors = units * config.model.dimension * _BYTES
    if config.model.encoder == "hashed":
        return Effort(memory=vectors)
    workers = config.runtime.least_workers
    training = config.training
    asked = training.steps * training.prompts_per_step * training.samples
    rows = (units / workers + asked) * _DOCUMENT
    return Effort(drawn_rows=rows * _MINILM_WEIGHTS, memory=vectors + workers * _MINILM_BYTES)
