"""Aug-PE between the votes and the texts: the model stays as it is, and texts evolve.

Reference: paper 003, section 4.2; see `text.aug_pe`.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.random import Streams
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.text.aug_pe import (
    Evolved,
    FilledBlanks,
    RewrittenBlanks,
    Variation,
    evolve,
)
from distributed_privrl.text.aug_pe_config import AugPeConfig
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.scoring import NearestVotes

POPULATION = "population.json"
_VARIATIONS: Mapping[str, type[RewrittenBlanks] | type[FilledBlanks]] = {
    "rewrite": RewrittenBlanks,
    "fill": FilledBlanks,
}


def evolution_of(config: DprftConfig) -> AugPeConfig:
    """Return how texts evolve."""
    training = config.training
    return AugPeConfig(
        iterations=training.steps,
        population=training.prompts_per_step * training.samples,
        most_tokens=training.most_tokens,
        **training.options,
    )


def variation_of(how: AugPeConfig, language: Language) -> Variation:
    """Return what writes variations."""
    return _VARIATIONS[how.variation](
        language=language,
        most_tokens=how.most_tokens,
        blank_probability=how.blank_probability,
        batch=how.batch,
    )


class _Told:
    """Votes that say how many rounds there were."""

    def __init__(self, votes: NearestVotes, told: Callable[[int], None]) -> None:
        self._votes, self._told, self._rounds = votes, told, 0

    def nearest_votes(self, texts: Sequence[str]) -> NDArray[np.float64]:
        found = self._votes.nearest_votes(texts)
        self._rounds += 1
        self._told(self._rounds)
        return found


def evolved(
    config: DprftConfig,
    language: Language,
    votes: NearestVotes,
    path: Path,
    *,
    prompts: Sequence[Prompt],
    told: Callable[[int], None],
) -> Evolved:
    """Let texts evolve by votes, and keep the population in a file.

    Called again after a kill, it writes the same texts, so that each round that was drawn is
    answered as it was.

    Args:
        config: of the run.
        language: that writes; it stays as it is.
        votes: of the corpus.
        path: of the file.
        prompts: public ones.
        told: called with the rounds done.

    Privacy: post-processing of the answers.
    """
    how = evolution_of(config)
    outcome = evolve(
        language,
        _Told(votes, told),
        prompts=prompts,
        vary=variation_of(how, language),
        config=how,
        streams=Streams(config.seed).child("evolution"),
    )
    kept = {"texts": outcome.texts, "prompts": [asdict(one) for one in outcome.prompts]}
    write_atomically(path, json.dumps(kept, ensure_ascii=False) + "\n")
    return outcome


def descendants(
    config: DprftConfig, language: Language, path: Path, *, streams: Streams
) -> Iterator[tuple[list[Prompt], list[str]]]:
    """Yield the kept population, then variations of it without end, each with its prompts."""
    kept = json.loads(path.read_text(encoding="utf-8"))
    texts = [str(one) for one in kept["texts"]]
    prompts = [Prompt(**{**one, "keywords": tuple(one["keywords"])}) for one in kept["prompts"]]
    yield prompts, texts
    vary, generation = variation_of(evolution_of(config), language), 0
    while True:
        yield prompts, vary(prompts, texts, streams.child(f"descendants {generation}"))
        generation += 1
