"""Rewards cost what they are charged, once: noise, budget, retries, resumes, evaluations."""

from collections.abc import Sequence
from dataclasses import replace
from math import log, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.errors import BudgetError, StorageError, UnsafeError, WorkerLostError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.methods.dprft.releases import VoteRelease, vote_release
from distributed_privrl.methods.dprft.scorer import MeanScorer, Queries, VoteScorer
from distributed_privrl.methods.dprft.similarity import Similarity
from distributed_privrl.methods.dprft.votes import (
    CentredVotes,
    ClippedVotes,
    NearestVotes,
    SoftVotes,
    VoteRule,
)
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.events import repeated
from distributed_privrl.privacy.schedules import reserved_events
from distributed_privrl.privacy.units import PrivacyBudget
from distributed_privrl.rounds.queries import QueryServer
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.text.trl_training import GatedReward
from tests.worlds.corpora import write_corpus, written
from tests.worlds.polls import RUN_ID, Poll

PLAIN = Similarity(dimension=2)
CLIPPED = ClippedVotes(similarity=PLAIN, threshold=0.5)
CORPUS = [written(v, " canary-4711") for v in ((1, 0), (1, 0.1), (0.9, 0), (0, 1), (-1, 0))]
TEXTS = [written(v) for v in ((1, 0), (0, 1), (-1, 0))]
OTHER = [written((1, 1))]


@pytest.fixture
def poll(tmp_path: Path) -> Poll:
    corpus = write_corpus(tmp_path / "corpus.jsonl", CORPUS)
    return Poll(folder=tmp_path, corpus=corpus, rule=CLIPPED, similarity=PLAIN)


def _scorer(poll: Poll, server: Any) -> VoteScorer:
    assert poll.rule is not None
    return VoteScorer(Queries(server), poll.encoder, poll.rule, units=len(CORPUS))


@pytest.mark.parametrize(
    ("units", "steps", "printed"),
    [
        (75_316, 100, {1: 41.90, 2: 22.14, 4: 11.86}),  # PubMed
        (725, 100, {1: 29.98, 2: 16.45, 4: 9.17}),  # QMSum
        (10_000, 200, {1: 52.50, 2: 28.07, 4: 15.23}),  # BBC articles and WildChat
    ],
)
def test_the_papers_noise_multipliers(units: int, steps: int, printed: dict[float, float]) -> None:
    batch, delta = 128, 1 / (units * log(units))
    for target, multiplier in printed.items():
        budget = PrivacyBudget(epsilon=target, delta=delta, unit="document")
        release = vote_release(CLIPPED, budget=budget, rounds=steps * batch)
        of_query = release.standard_deviation / (CLIPPED.most * sqrt(batch))
        assert round(of_query, 2) == printed[target] == multiplier
        stated = [repeated(release.event, steps * batch)]
        cost = epsilon(stated, delta=delta, relation=budget.relation)
        assert 0.9999 * target < cost <= target


@pytest.mark.parametrize("workers", [1, 4])
def test_the_noise_of_a_reward_is_the_calibrated_one(poll: Poll, workers: int) -> None:
    samples = 640
    poll = replace(poll, rounds=samples, spare=0, workers=workers, insecure_key=None)
    release = poll.release
    assert release is not None
    with replace(poll, private=False).server() as server:
        exact = _scorer(poll, server).score(TEXTS * (samples // 6))
        poll.checkpoint.unlink()
    with poll.server() as server:
        scorer = _scorer(poll, server)
        first = scorer.score(TEXTS * (samples // 6))
        second = scorer.score((TEXTS * (samples // 6))[::-1])[::-1]
    noise = np.concatenate([first - exact, second - exact]) * CLIPPED.unit * len(CORPUS)
    spread = float(np.square(noise / release.standard_deviation).sum())
    assert 1e-6 < stats.chi2.cdf(spread, len(noise)) < 1 - 1e-6
    for wrong in (1.5, 1 / 1.5):  # it would notice a fifth more or less
        assert not 1e-6 < stats.chi2.cdf(wrong * len(noise), len(noise)) < 1 - 1e-6
    assert abs(np.corrcoef(first - exact, second - exact)[0, 1]) < 0.4


def test_without_noise_rewards_are_clipped_means(poll: Poll) -> None:
    with replace(poll, private=False).server() as server:
        found = _scorer(poll, server).score(TEXTS)
        assert _scorer(poll, server).score([]).shape == (0,)
    np.testing.assert_allclose(found, [0.3, (0.5 + 0.0995) / 5, 0.1], atol=2e-3)


def test_each_sample_is_charged_once_and_no_more_than_there_are(poll: Poll) -> None:
    with poll.server() as server:
        scorer = _scorer(poll, server)
        first = scorer.score(TEXTS)
        again = scorer.score(TEXTS)
        np.testing.assert_array_equal(first, again)
        assert _entry(poll) == (3, 3, 3)
        scorer.score(TEXTS * 3)
        with pytest.raises(BudgetError, match="costs 1 rounds and 0 are left"):
            scorer.score(OTHER)
        np.testing.assert_array_equal(first, scorer.score(TEXTS))
    assert _entry(poll) == (12, 12, 12)


def test_a_batch_beyond_the_rest_draws_nothing(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    with poll.server() as server:
        scorer = _scorer(poll, server)
        scorer.score(TEXTS * 3)
        monkeypatch.setattr(VoteRelease, "release", _must_not)
        with pytest.raises(BudgetError, match="costs 6 rounds and 3 are left") as refused:
            scorer.score(TEXTS * 2)
        assert refused.value.exit_code == 3
    assert _entry(poll) == (9, 9, 9)


@pytest.mark.parametrize("known", [False, True])
def test_an_answer_is_not_paid_for_as_another_number_of_rounds(poll: Poll, known: bool) -> None:
    with poll.server() as server:
        scorer = _scorer(poll, server)
        asked = {"query": "q", "arguments": {"synthetic": scorer._rounded(TEXTS)}}
        if known:
            server.call("answer", asked | {"rounds": 3})
        with pytest.raises(UnsafeError, match="would pay for 1 rounds, and its answer of 3"):
            server.call("answer", asked | {"rounds": 1})
    assert _entry(poll) == ((3, 3, 3) if known else (0, 0, 0))


def test_a_resumed_trainer_gets_the_answers_that_it_paid_for(poll: Poll) -> None:
    with poll.server() as server:
        scorer = _scorer(poll, server)
        first, second = scorer.score(TEXTS), scorer.score(OTHER)
    with poll.server() as server:
        scorer = _scorer(poll, server)
        np.testing.assert_array_equal(scorer.score(OTHER), second)
        np.testing.assert_array_equal(scorer.score(TEXTS), first)
        assert _entry(poll) == (4, 4, 4)
        reordered = scorer.score(TEXTS[::-1])
    assert not np.array_equal(reordered, first[::-1])
    assert _entry(poll) == (7, 7, 7)


def test_an_evaluation_never_reaches_the_voters(
    poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    with poll.server() as server:
        scorer = _scorer(poll, server)
        known = scorer.score(TEXTS)
        reward = GatedReward(scorer, Gate(most_repetition=1.0), [Prompt(text="p")])
        monkeypatch.setattr("distributed_privrl.methods.dprft.voter.Voter.votes", _must_not)
        for texts in (TEXTS, OTHER):
            with pytest.raises(UnsafeError, match="an evaluation asked"):
                reward(prompts=["p"] * len(texts), completions=texts)
        reward.training = lambda: True
        assert reward(prompts=["p"] * len(TEXTS), completions=TEXTS) == known.tolist()
    assert _entry(poll) == (3, 3, 3)


def test_an_answer_that_was_drawn_and_lost_is_paid_for_anew(
    poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Any] = []
    right = VoteRelease.release

    def dies(self: VoteRelease, *rest: Any, **more: Any) -> Any:
        drawn.append(right(self, *rest, **more))
        raise KeyboardInterrupt

    with poll.server() as server, monkeypatch.context() as patch:
        patch.setattr(VoteRelease, "release", dies)
        with pytest.raises(KeyboardInterrupt):
            _scorer(poll, server).score(TEXTS)
    with replace(poll, insecure_key=None).server() as server:
        _scorer(poll, server).score(TEXTS)
        assert _entry(poll) == (6, 6, 3)
        _scorer(poll, server).score(TEXTS * 3)  # 12 planned, 4 spare: 10 are left
        with pytest.raises(BudgetError, match="costs 3 rounds and 0 are left"):
            _scorer(poll, server).score(OTHER * 3)
    assert len(drawn) == 1


def test_an_answer_that_cannot_be_written_is_given_to_nobody(
    poll: Poll, monkeypatch: pytest.MonkeyPatch
) -> None:
    with poll.server() as server:
        with monkeypatch.context() as patch:
            patch.setattr(QueryServer, "_save", _full)
            for _ in range(2):
                with pytest.raises(StorageError):
                    _scorer(poll, server).score(TEXTS)
        answer = _scorer(poll, server).score(TEXTS)
        assert _entry(poll) == (3, 3, 3)  # it was drawn once
    with poll.server() as server:
        np.testing.assert_array_equal(_scorer(poll, server).score(TEXTS), answer)


def test_a_server_that_dies_is_asked_again(poll: Poll) -> None:
    class Dying:
        size, lost = 1, 0

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def call(self, method: str, shared: Any = None, per_worker: Any = None) -> list[Any]:
            if method == "answer" and not self.lost:
                self.lost = 1
                self._inner.call(method, shared)
                raise WorkerLostError("gone", may_return=True)
            return list(self._inner.call(method, shared))

        def wait_for_lost(self) -> None:
            self.lost = 2

        def close(self) -> None: ...

    with poll.server() as server:
        dying = Dying(server)
        answer = _scorer(poll, dying).score(TEXTS)
        assert dying.lost == 2
        np.testing.assert_array_equal(answer, _scorer(poll, server).score(TEXTS))
    assert _entry(poll) == (3, 3, 3)


def test_the_rest_is_spent_without_a_draw(poll: Poll, monkeypatch: pytest.MonkeyPatch) -> None:
    with poll.server() as server:
        _scorer(poll, server).score(TEXTS)
        monkeypatch.setattr(VoteRelease, "release", _must_not)
        status = server.call("advance", {"rounds": 100})[0]
        assert status.finished
    reserved, _, committed = _entry(poll)
    assert reserved == committed == poll.rounds
    assert poll.release is not None
    entry = poll.ledger.reserved(RUN_ID)
    assert entry is not None
    assert reserved_events(entry.event, 12) == (repeated(poll.release.event, 12),)


@pytest.mark.parametrize(
    "rule",
    [
        SoftVotes(similarity=PLAIN),
        NearestVotes(similarity=PLAIN),
        CentredVotes(similarity=PLAIN, clip_norm=1),
    ],
    ids=["soft", "nearest", "centred"],
)
def test_other_rules_are_charged_a_query(poll: Poll, rule: VoteRule) -> None:
    with replace(poll, rule=rule, rounds=2).server() as server:
        scorer = _scorer(replace(poll, rule=rule), server)
        assert scorer.score(TEXTS).shape == (3,)
        scorer.score(TEXTS * 20)
        with pytest.raises(BudgetError):
            scorer.score(OTHER)
    assert _entry(poll) == (2, 2, 2)


def test_nearest_votes_are_counts(poll: Poll) -> None:
    poll = replace(poll, rule=NearestVotes(similarity=PLAIN), private=False)
    with poll.server() as server:
        np.testing.assert_allclose(_scorer(poll, server).nearest_votes(TEXTS), [3, 1, 1])
        with pytest.raises(UnsafeError, match="nearest"):
            _scorer(replace(poll, rule=CLIPPED), server).nearest_votes(TEXTS)


def test_the_mean_is_released_once_and_scores_any_texts(poll: Poll) -> None:
    mean = replace(poll, rule=None, rounds=1, spare=0)
    with mean.server() as server:
        scorer = MeanScorer(Queries(server), mean.encoder, PLAIN, len(CORPUS))
        first, more = scorer.score(TEXTS), scorer.score([*TEXTS, *OTHER])
        np.testing.assert_array_equal(first, more[:3])
    assert _entry(mean) == (1, 1, 1)
    mean.checkpoint.unlink()
    with replace(mean, private=False).server() as server:
        exact = MeanScorer(Queries(server), mean.encoder, PLAIN, len(CORPUS)).score(TEXTS)
    np.testing.assert_allclose(exact, [1.995 / 5, 1.0995 / 5, -1.995 / 5], atol=2e-3)
    assert not np.allclose(first, exact)


def test_no_text_of_the_corpus_is_in_what_the_run_leaves(poll: Poll) -> None:
    with poll.server() as server:
        _scorer(poll, server).score(TEXTS)
        poll.ledger.close()
    left = [one for one in poll.folder.iterdir() if one != poll.corpus]
    assert len(left) >= 2
    for one in left:
        assert b"canary-4711" not in one.read_bytes()
        assert b"[0.9, 0]" not in one.read_bytes()


def test_noise_and_ledger_go_together(poll: Poll) -> None:
    for changed in ({"release": None}, {"ledger": None}):

        class Changed(LocalExecutor):
            def start(self, worker_cls: type, shards: Sequence[Any], **more: Any) -> Any:
                if worker_cls is QueryServer:
                    shards = [replace(one, **changed) for one in shards]  # noqa: B023
                return super().start(worker_cls, shards, **more)

        with pytest.raises(UnsafeError, match="go together"), poll.server(Changed()):
            pass


def _entry(poll: Poll) -> tuple[int, int, int]:
    entry = poll.ledger.reserved(RUN_ID)
    assert entry is not None
    return entry.reserved_rounds, entry.drawn_rounds, entry.committed_rounds


def _must_not(*_: Any, **__: Any) -> Any:
    raise AssertionError("it must not get here")


def _full(*_: Any) -> None:
    raise StorageError("the disk is full")
