"""Texts of a cell: by a run of the product, or real ones."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import cells
from benchmarks.text_sides import DATASET, TEMPLATE, Sides
from distributed_privrl.core.random import Streams
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.dprft.config import DprftConfig, TextConfig
from distributed_privrl.methods.dprft.evolution import POPULATION, descendants
from distributed_privrl.methods.dprft.training import MODEL, write_texts
from distributed_privrl.methods.dprft.writing import prompts_of
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language

REWARDS = ("dp_votes", "dp_votes_soft", "dp_votes_centred", "dp_mean_embedding")
SHUFFLED, PUBLIC, PRIVATE = "shuffled public words", "public text", "private text"
UNTUNED, AUG_PE, FINE_TUNING = "untuned", "aug_pe", "dp_fine_tuning"
_GATED = 256
"""Texts by which a model's gate rate is counted."""
LEVERS: Mapping[str, Mapping[str, Any]] = {
    "": {},
    "rate 1e-3": {"options": {"learning_rate": 1e-3, "kl_weight": 0.2}},
    "rate 3e-5": {"options": {"learning_rate": 3e-5}},
    "price .2": {"options": {"kl_weight": 0.2}},
    "target .02": {"options": {"kl_target": 0.02}},
    "entropy .01": {"options": {"entropy_weight": 0.01}},
    "entropy .03": {"options": {"entropy_weight": 0.03}},
    "entropy .1": {"options": {"entropy_weight": 0.1}},
    "likelihood .1": {"options": {"likelihood_weight": 0.1}},
    "likelihood .3": {"options": {"likelihood_weight": 0.3}},
    "likelihood 1": {"options": {"likelihood_weight": 1.0}},
    "stop .05": {"options": {"stopping": {"most_kl": 0.05}}},
    "128 x 1": {"prompts_per_step": 128, "samples": 1},
    "25 x 512": {"steps": 25, "samples": 8},
}
"""What a tuning by votes may do otherwise, at the same epsilon: keys of ``training``."""


@dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """Texts of one method.

    Args:
        method: how they are made.
        epsilon: of what is released; None: without noise, or without the corpus.
        seed: public one.
        lever: which of `LEVERS` the tuning has; "": none.
    """

    method: str
    epsilon: float | None
    seed: int
    lever: str = ""


@dataclass(frozen=True, kw_only=True)
class Made:
    """Texts of a cell, and what they cost.

    Args:
        texts: all of the row.
        gate_rate: share of what was written that the gate lets pass; None: nothing was written.
        facts: what else is known.
    """

    texts: Sequence[str]
    gate_rate: float | None
    facts: dict[str, Any]


def texts_of(cell: Cell, sides: Sides) -> Made:
    """Return a cell's texts.

    Privacy: of `cells.run_product`; real rows of the table are exact.
    """
    if cell.method in (SHUFFLED, PUBLIC, PRIVATE):
        return Made(texts=_real(cell, sides), gate_rate=None, facts={})
    if cell.method == UNTUNED:
        return _untuned(cell, sides)
    return _run(cell, sides)


def run_values(cell: Cell, sides: Sides) -> dict[str, Any]:
    """Return the configuration of a cell's run."""
    sizes = sides.sizes
    values: dict[str, Any] = {
        "method": "dprft",
        "seed": cell.seed,
        "data": {"sensitive": DATASET, "unit": "document", "units": len(sides.private)},
        "privacy": {"epsilon": cell.epsilon, "delta": sizes.delta},
        "model": {"language": str(sides.language / MODEL)},
        "training": {
            "spare": 0,
            "most_tokens": sizes.most_tokens,
            "prompts": {
                "template": TEMPLATE,
                "file": str(sides.template_file.absolute()),
                "packages": list(sizes.prompted),
            },
        },
        "output": {"size": sizes.texts},
        "runtime": {"workers": 1, "executor": "local"},
    }
    if cell.method == FINE_TUNING:
        values["method"] = "dp_fine_tuning"
        values["training"] |= dict(sizes.rounds)
    elif cell.method == AUG_PE:
        values["model"] |= {"reward": "nearest_votes"}
        values["training"] |= {"by": "aug_pe", "steps": sizes.iterations, "samples": 2}
        values["training"] |= {"prompts_per_step": sizes.texts // 2}
    else:
        reward = cell.method if cell.method in REWARDS else REWARDS[0]
        values["model"] |= {"reward": reward, "clip_norm": sizes.clip_norm}
        values["training"] |= {"steps": sizes.steps, "prompts_per_step": sizes.prompts}
        values["training"] |= {"samples": 2, "options": {}, **LEVERS[cell.lever]}
    return values


def _config(cell: Cell, sides: Sides) -> DprftConfig:
    config = parse_config(run_values(cell, sides), source=cell.name)
    assert isinstance(config, DprftConfig)
    return config


def _real(cell: Cell, sides: Sides) -> list[str]:
    source = sides.private if cell.method == PRIVATE else [one.text for one in sides.public]
    generator = Streams(cell.seed).numpy("real texts")
    rows = generator.permutation(len(source))[: sides.sizes.texts]
    texts = [source[row] for row in rows]
    if cell.method != SHUFFLED:
        return texts
    words = [word for text in texts for word in text.split()]
    mixed = [words[row] for row in generator.permutation(len(words))]
    ends = np.cumsum([len(text.split()) for text in texts])
    return [" ".join(one) for one in np.split(np.array(mixed, dtype=object), ends[:-1])]


def _untuned(cell: Cell, sides: Sides) -> Made:
    path = sides.work / "untuned" / f"{cell.name}.jsonl"
    path.parent.mkdir(exist_ok=True)
    config = _config(cell, sides)
    write_texts(config, sides.language, path, stream="untuned")
    rate = _gate_rate(config, sides.language / MODEL, sides)
    return Made(texts=_read(path), gate_rate=rate, facts={})


def _run(cell: Cell, sides: Sides) -> Made:
    finished = cells.run_product(cell, run_values(cell, sides), sides.work)
    config = finished.config
    assert isinstance(config, TextConfig)
    found = finished.folder if finished.folder.name != "private" else finished.folder.parent
    return Made(
        texts=_read(finished.folder / config.output.texts),
        gate_rate=_rate_of_run(config, found, sides),
        facts={
            "certified epsilon": finished.cost["certified_epsilon"],
            "cpu s": finished.cpu_s,
        },
    )


def _rate_of_run(config: TextConfig, folder: Path, sides: Sides) -> float:
    """Return the share of what a run's model writes, or of its last population, that passes."""
    if isinstance(config, DprftConfig) and config.training.by == "aug_pe":
        (path,) = folder.rglob(POPULATION)
        language, streams = Language.load(sides.language / MODEL), Streams(config.seed)
        prompts, texts = next(descendants(config, language, path, streams=streams))
        return float(Gate(**sides.template.gate).passes(prompts, texts).mean())
    (model,) = (one for one in folder.rglob(MODEL) if one.is_dir())
    return _gate_rate(config, model, sides)


def _gate_rate(config: TextConfig, folder: Path, sides: Sides) -> float:
    """Return the share of a model's texts that pass, by draws of their own."""
    prompts, streams = prompts_of(config), Streams(config.seed).child("gate rate")
    chosen = [prompts[row] for row in streams.numpy("rows").integers(len(prompts), size=_GATED)]
    texts = generate(
        Language.load(folder),
        [one.text for one in chosen],
        most_tokens=config.training.most_tokens,
        generator=torch.Generator().manual_seed(streams.integer("tokens")),
    ).texts
    return float(Gate(**sides.template.gate).passes(chosen, texts).mean())


def _read(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]
