"""Gates on votes: what a document moves, one draw an answer, the noise charged, whom it is for."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.methods.dprft.scorer import Queries, VoteScorer
from distributed_privrl.methods.dprft.similarity import Similarity
from distributed_privrl.methods.dprft.voter import Voter
from distributed_privrl.methods.dprft.votes import ClippedVotes
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.units import Relation
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.trl_training import GatedReward
from tests.gates.bounds import assert_unit_variance
from tests.worlds.corpora import summed, write_corpus, written
from tests.worlds.polls import RUN_ID, Poll

PLAIN = Similarity(dimension=2)
RULE = ClippedVotes(similarity=PLAIN, threshold=0.5)
DIRECTIONS = [(1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, -1)]
TEXTS = [written(one) for one in DIRECTIONS]
QUERIES = 16


@contextmanager
def _drawn() -> Iterator[list[NDArray[np.float64]]]:
    """Watch each draw of the server: its noise, in steps."""
    seen: list[NDArray[np.float64]] = []
    right = SecureNoise.add_discrete_gaussian

    def watched(self: SecureNoise, values: Any, **named: Any) -> Any:
        noisy = right(self, values, **named)
        seen.append((noisy - values).astype(np.float64))
        return noisy

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SecureNoise, "add_discrete_gaussian", watched)
        yield seen


def _poll(folder: Path) -> Poll:
    corpus = write_corpus(folder / "corpus.jsonl", TEXTS)
    rounds = 2 * QUERIES * (7 * len(TEXTS) + 1)  # enough to answer all twice
    return Poll(
        folder=folder,
        corpus=corpus,
        rule=RULE,
        similarity=PLAIN,
        rounds=rounds,
        spare=0,
        insecure_key=None,
    )


def gate_a_document_moves_its_bound(folder: Path) -> None:
    """Whatever a document holds, it moves each text's sum by the threshold at most."""
    poll = _poll(folder)
    scorer = VoteScorer(Queries(None), poll.encoder, RULE, 1)  # type: ignore[arg-type]
    asked = scorer._rounded(TEXTS)
    everybody = summed(poll.corpus, RULE, asked)
    for place in range(len(TEXTS)):
        others = write_corpus(folder / "others.jsonl", TEXTS[:place] + TEXTS[place + 1 :])
        moved = np.abs(everybody - summed(others, RULE, asked)).max()
        most = RULE.sensitivity(Relation.REPLACE_WITH_NULL)
        assert moved <= most, f"document {place} moves a sum by {moved / most:.3f} of the bound"


def gate_one_draw_an_answer(folder: Path) -> None:
    """Each query has one draw of the noise that it is charged, and asking again has none."""
    poll = _poll(folder)
    release = poll.release
    assert release is not None
    with replace(poll, private=False, folder=folder).server() as server:
        exact = VoteScorer(Queries(server), poll.encoder, RULE, 1).score(TEXTS)
    poll.checkpoint.unlink()
    with _drawn() as draws, poll.server() as server:
        scorer = VoteScorer(Queries(server), poll.encoder, RULE, 1)
        turns = range(QUERIES)
        orders = [[*np.roll(TEXTS, -i), *TEXTS * 6, written((i + 1, 7))] for i in turns]
        answers = [scorer.score(one) for one in orders]
        again = [scorer.score(one) for one in orders]
        entry = poll.ledger.reserved(RUN_ID)
    assert len(draws) == len(orders), f"{len(orders)} queries, {len(draws)} draws"
    for one, other in zip(answers, again, strict=True):
        assert np.array_equal(one, other), "a query has two answers"
    assert entry is not None
    asked = sum(map(len, orders))
    assert entry.reserved_rounds == asked, "other rounds are charged than texts were scored"
    known = [np.concatenate([np.roll(exact, -i), np.tile(exact, 6)]) for i in turns]
    noise = np.concatenate(
        [(one[:-1] - right) * RULE.unit for one, right in zip(answers, known, strict=True)]
    )
    assert_unit_variance(noise / release.standard_deviation, what="noise of a reward")


def gate_evaluations_reach_no_voter(folder: Path) -> None:
    """A reward function that a trainer's evaluation calls asks no voter and draws nothing."""
    poll, asked = _poll(folder), []
    right = Voter.votes

    def votes(self: Voter, synthetic: Any) -> Any:
        asked.append(1)
        return right(self, synthetic)

    with pytest.MonkeyPatch.context() as patch, _drawn() as draws, poll.server() as server:
        patch.setattr(Voter, "votes", votes)
        scorer = VoteScorer(Queries(server), poll.encoder, RULE, 1)
        reward = GatedReward(scorer, Gate(most_repetition=1.0), [Prompt(text="p")])
        model = torch.nn.Linear(1, 1).eval()
        reward.training = lambda: model.training
        with suppress(UnsafeError):
            reward(prompts=["p"] * len(TEXTS), completions=TEXTS)
    assert not asked, "an evaluation reached the voters"
    assert not draws, "an evaluation was answered with noise that nobody asked for"


def gate_only_what_passed_is_scored(folder: Path) -> None:
    """A training asks about texts that pass the gate, by a rule that is counted here again."""
    from tests.worlds.notes import Notes

    world, scored = Notes(folder).budget(), list[str]()
    right = VoteScorer.score

    def score(self: VoteScorer, texts: Any) -> Any:
        scored.extend(texts)
        return right(self, texts)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VoteScorer, "score", score)
        world.run(training__most_tokens=3, training__steps=2, output__size=1)
    assert scored
    failed = [text for text in scored if len(text.split()) < 2]
    assert not failed, f"{len(failed)} texts that fail the gate were scored"


def gate_no_word_of_a_document_is_left(folder: Path) -> None:
    """No file of a run, in its private folder neither, holds a word of the corpus."""
    from tests.worlds.notes import Notes

    world = Notes(folder).budget()
    world.run(training__steps=1, output__size=1, executor=LocalExecutor())
    world.check_leaks("")
