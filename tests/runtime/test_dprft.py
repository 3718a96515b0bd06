"""`dprft` on Ray: voters are processes of their own, and nothing they hold lies around them."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from distributed_privrl.core.executor import Executor
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.methods.dprft.scorer import Queries, VoteScorer
from distributed_privrl.methods.dprft.similarity import Similarity
from distributed_privrl.methods.dprft.votes import ClippedVotes
from distributed_privrl.text.encoders import HashedEncoder
from tests.gates.around_ray import Surroundings
from tests.worlds.corpora import write_corpus, written
from tests.worlds.notes import CANARY, PEOPLE, Notes
from tests.worlds.polls import RUN_ID, Poll

QUERIES, SAMPLES = 20, 32
RULE = ClippedVotes(similarity=Similarity(dimension=2), threshold=0.5)
BATCHES = [[written((i + 1, j)) for j in range(SAMPLES)] for i in range(QUERIES)]


@contextmanager
def asked(poll: Poll, executor: Executor | None = None) -> Iterator[VoteScorer]:
    with poll.server(executor) as server:
        yield VoteScorer(Queries(server), poll.encoder, RULE, units=1)


def test_noise_is_the_calibrated_one_and_drawn_once_with_voters_in_four_processes(
    tmp_path: Path, ray_executor: Executor
) -> None:
    directions = [(1, 0), (1, 0.1), (0.9, 0), (0, 1), (-1, 0), (-1, -1), (0, 0), (0, -1)]
    poll = Poll(
        folder=tmp_path,
        corpus=write_corpus(tmp_path / "corpus.jsonl", [written(one) for one in directions]),
        rule=RULE,
        similarity=RULE.similarity,
        rounds=QUERIES * SAMPLES,
        spare=0,
        workers=4,
        insecure_key=None,
    )
    with asked(replace(poll, private=False)) as scorer:
        exact = np.array([scorer.score(one) for one in BATCHES])
    poll.checkpoint.unlink()
    with asked(poll, ray_executor) as scorer:
        answers = np.array([scorer.score(one) for one in BATCHES])
        again = np.array([scorer.score(one) for one in BATCHES])
    np.testing.assert_array_equal(answers, again)
    entry = poll.ledger.reserved(RUN_ID)
    assert entry is not None
    charged = (entry.reserved_rounds, entry.drawn_rounds, entry.committed_rounds)
    assert charged == (QUERIES * SAMPLES,) * 3, "each sample that was scored is charged once"
    assert poll.release is not None
    noise = (answers - exact).ravel() * RULE.unit / poll.release.standard_deviation
    spread = float(np.square(noise).sum())
    assert 1e-6 < stats.chi2.cdf(spread, noise.size) < 1 - 1e-6
    assert stats.chi2.cdf(spread * 2, noise.size) > 1 - 1e-6  # it would notice 3/10 less


def say(what: str) -> None:
    """Say what should not be said, as a worker."""
    print(what, flush=True)


def held(around: Surroundings, secrets: list[bytes]) -> list[str]:
    """Return where a secret lies in Ray's session, or in what its head keeps."""
    contents = list(around.contents())
    assert len(contents) > 10, "a session has logs, and a head keeps something"
    return [name for name, content in contents if any(one in content for one in secrets)]


def test_no_word_and_no_vector_of_the_corpus_lies_around_ray(
    tmp_path: Path,
    ray_executor: Executor,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    import ray

    world = Notes(tmp_path).budget()
    config = world.config()
    assert isinstance(config, DprftConfig)
    dimension = config.model.dimension
    encoded = HashedEncoder(dimension=dimension).encode(
        [f"{CANARY} note {i} about bed {i % 5}" for i in range(2 * PEOPLE)]
    )
    vectors = Similarity(dimension=dimension).vectors(encoded)
    secrets = [CANARY.encode(), *(row.tobytes() for row in vectors)]
    around = Surroundings()
    world.run(executor=ray_executor, key=None)
    world.check_leaks(caplog.text + "".join(capfd.readouterr()))
    assert not held(around, secrets)
    ray.get(ray.remote(say).options(num_cpus=0).remote(CANARY))
    assert held(around, secrets), "the scan sees what a worker says"
