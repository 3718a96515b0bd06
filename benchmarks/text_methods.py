"""Texts of a cell: by a run of the product, by Aug-PE on the product's votes, or real ones."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import cells
from benchmarks.text_sides import DATASET, TEMPLATE, Sides
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.random import Streams
from distributed_privrl.data.corpus_datasets import corpus_of
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.methods.dprft.method import TUNING
from distributed_privrl.methods.dprft.plan import similarity_of
from distributed_privrl.methods.dprft.releases import VoteRelease, vote_release
from distributed_privrl.methods.dprft.scorer import Queries, VoteScorer
from distributed_privrl.methods.dprft.training import MODEL, prompts_of, write_texts
from distributed_privrl.methods.dprft.voter import Voter, VoterSpec
from distributed_privrl.methods.dprft.votes import NearestVotes
from distributed_privrl.privacy.accounting import epsilon as epsilon_of
from distributed_privrl.privacy.events import charged_rounds, repeated
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.rounds.queries import QueryServer, QueryServerSpec
from distributed_privrl.text.aug_pe import AugPeConfig, RewrittenBlanks, evolve
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.generation import generate
from distributed_privrl.text.language import Language

REWARDS = ("dp_votes", "dp_votes_soft", "dp_votes_centred", "dp_mean_embedding")
SHUFFLED, PUBLIC, PRIVATE = "shuffled public words", "public text", "private text"
UNTUNED, AUG_PE, FINE_TUNING = "untuned", "aug_pe", "dp_fine_tuning"
RUN_ID = "aug-pe"
_GATED = 256
"""Texts by which a model's gate rate is counted."""


@dataclass(frozen=True, kw_only=True)
class Cell(cells.Cell):
    """Texts of one method.

    Args:
        method: how they are made.
        epsilon: of what is released; None: without noise, or without the corpus.
        seed: public one.
    """

    method: str
    epsilon: float | None
    seed: int


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

    Privacy: of `cells.run_product` and `_evolved`; real rows of the table are exact.
    """
    if cell.method in (SHUFFLED, PUBLIC, PRIVATE):
        return Made(texts=_real(cell, sides), gate_rate=None, facts={})
    if cell.method == UNTUNED:
        return _untuned(cell, sides)
    return _evolved(cell, sides) if cell.method == AUG_PE else _tuned(cell, sides)


def run_values(cell: Cell, sides: Sides) -> dict[str, Any]:
    """Return the configuration of a cell's run."""
    sizes = sides.sizes
    reward = cell.method if cell.method in REWARDS else REWARDS[0]
    return {
        "method": "dprft",
        "seed": cell.seed,
        "data": {"sensitive": DATASET, "unit": "document", "units": len(sides.private)},
        "privacy": {"epsilon": cell.epsilon, "delta": sizes.delta},
        "model": {
            "language": str(sides.language / MODEL),
            "reward": reward,
            "clip_norm": sizes.clip_norm,
        },
        "training": {
            "steps": sizes.steps,
            "prompts_per_step": sizes.prompts,
            "samples": 2,
            "spare": 0,
            "most_tokens": sizes.most_tokens,
            "options": dict(sizes.options),
            "prompts": {
                "template": TEMPLATE,
                "file": str(sides.template_file.absolute()),
                "packages": list(sizes.prompted),
            },
        },
        "output": {"size": sizes.texts},
        "runtime": {"workers": 1, "executor": "local"},
    }


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


def _tuned(cell: Cell, sides: Sides) -> Made:
    finished = cells.run_product(cell, run_values(cell, sides), sides.work)
    config = finished.config
    assert isinstance(config, DprftConfig)
    found = finished.folder if finished.folder.name != "private" else finished.folder.parent
    (tuned,) = {one.parent for one in found.rglob(f"{TUNING}/{MODEL}")}
    return Made(
        texts=_read(finished.folder / config.output.texts),
        gate_rate=_gate_rate(config, tuned / MODEL, sides),
        facts={
            "certified epsilon": finished.cost["certified_epsilon"],
            "cpu s": finished.cpu_s,
        },
    )


def _gate_rate(config: DprftConfig, folder: Path, sides: Sides) -> float:
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


def _evolved(cell: Cell, sides: Sides) -> Made:
    """Return the population of Aug-PE, whose votes the product's server draws and charges.

    Privacy: unit document, one vote each an iteration; all iterations are charged at once, in a
    ledger of the cell's own.
    """
    config, sizes = _config(cell, sides), sides.sizes
    rule = NearestVotes(similarity=similarity_of(config))
    encoder = HashedEncoder(dimension=config.model.dimension)
    release, ledger = _opened(cell, config, rule, sides)
    executor = LocalExecutor()
    ref = corpus_of(cells.store_of(sides.work), DATASET)
    voter = VoterSpec(ref=ref, encoder=encoder, similarity=rule.similarity, rule=rule)
    workers = executor.start(Voter, [voter], repeat_lost_calls=True)
    spec = QueryServerSpec(
        run_id=RUN_ID,
        checkpoint=_folder(cell, sides) / "answers.safetensors",
        rounds=sizes.iterations,
        max_rounds=sizes.iterations,
        block_rounds=sizes.iterations,
        ledger=ledger,
        workers=workers,
        method="votes",
        release=release,
    )
    server = executor.start(QueryServer, [spec], service=True)
    language, prompts = Language.load(sides.language / MODEL), prompts_of(config)
    evolved = evolve(
        language,
        VoteScorer(Queries(server), encoder, rule, len(sides.private)),
        prompts=prompts,
        vary=RewrittenBlanks(language=language, most_tokens=sizes.most_tokens),
        config=AugPeConfig(
            iterations=sizes.iterations, population=sizes.texts, most_tokens=sizes.most_tokens
        ),
        streams=Streams(cell.seed).child("aug-pe"),
    )
    server.close()
    workers.close()
    passed = Gate(**sides.template.gate).passes(evolved.prompts, evolved.texts)
    facts = {"certified epsilon": None if release is None else _spent(release, config, sides)}
    return Made(texts=evolved.texts, gate_rate=float(passed.mean()), facts=facts)


def _folder(cell: Cell, sides: Sides) -> Path:
    folder = sides.work / "runs" / cell.name
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _opened(
    cell: Cell, config: DprftConfig, rule: NearestVotes, sides: Sides
) -> tuple[VoteRelease | None, Ledger | None]:
    """Return what draws the noise and the ledger that has all of it; None without privacy."""
    if cell.epsilon is None:
        return None, None
    rounds = sides.sizes.iterations
    budget = PrivacyBudget(
        epsilon=cell.epsilon,
        delta=config.privacy.delta,
        unit=config.data.unit,
        relation=Relation(config.privacy.relation),
    )
    release = vote_release(rule, budget=budget, rounds=rounds)
    ledger = Ledger(f"sqlite:///{(_folder(cell, sides) / 'ledger.sqlite').absolute()}")
    if ledger.reserved(RUN_ID) is None:
        known = {"dataset": DATASET, "fingerprint": "f" * 64}
        ledger.set_budget(**known, budget=budget)
        charge = Charge(
            entry_id=RUN_ID,
            kind="rounds",
            **known,
            unit=budget.unit,
            relation=budget.relation,
            epsilon=budget.epsilon,
            delta=budget.delta,
            max_rounds=rounds,
            event=charged_rounds([release.event]),
        )
        ledger.open_together([charge])
    return release, ledger


def _spent(release: VoteRelease, config: DprftConfig, sides: Sides) -> float:
    return epsilon_of(
        [repeated(release.event, sides.sizes.iterations)],
        delta=config.privacy.delta,
        relation=Relation(config.privacy.relation),
    )


def _read(path: Path) -> list[str]:
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]
