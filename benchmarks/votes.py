"""A step's votes: 10,000 documents and 128 synthetic texts, from the batch to the summed votes.

Two voters on Ray answer, as in a run; beside them, in one process and in turns: one voter with all
documents, float64 as it would be without whole numbers, and bare products. The server's step, with
its reservation, its noise and its checkpoint, is timed at the start and after many. The fastest of
the two voters' turns says what a quiet machine would take, the median what this one took.
"""

import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks import harness
from benchmarks.harness import SEED, Alternative, Result
from distributed_privrl.core.executor import Executor, LocalExecutor, WorkerGroup
from distributed_privrl.core.random import Streams
from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.methods.dprft.releases import vote_release
from distributed_privrl.methods.dprft.similarity import Similarity
from distributed_privrl.methods.dprft.voter import Voter, VoterSpec
from distributed_privrl.methods.dprft.votes import CentredVotes, ClippedVotes, SoftVotes, VoteRule
from distributed_privrl.privacy.events import charged_rounds
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.units import PrivacyBudget
from distributed_privrl.rounds.queries import QueryServer, QueryServerSpec
from distributed_privrl.runtime.executor import RayExecutor
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.turns import CELLS

WORKERS = 2
ASKED_MS = 50.0
"""Of a step's votes on two workers, at most."""
DIMENSION, WORDS = 384, 120
RUN_ID = "benchmark"
OURS, PLAIN, BOUND = "one voter", "float64, clipped and summed", "bare products (bound)"


@dataclass(frozen=True, kw_only=True)
class Size:
    """How much is measured.

    Args:
        documents: of the corpus.
        samples: synthetic texts of a step.
        turns: of each alternative.
        steps: of the server.
        ray: whether voters are actors.
    """

    documents: int = 10_000
    samples: int = 128
    turns: int = 21
    steps: int = 200
    ray: bool = True


FULL, QUICK = Size(), Size(documents=300, samples=8, turns=3, steps=6, ray=False)


class Batches:
    """Texts of random words, and synthetic ones in whole numbers."""

    def __init__(self, size: Size) -> None:
        self._source = Streams(SEED).numpy("votes")
        self._size = size

    def texts(self, count: int) -> list[str]:
        """Return texts of `WORDS` words each."""
        words = self._source.zipf(1.3, size=(count, WORDS)) % 30_000
        return [" ".join(f"word{one}" for one in row) for row in words]

    def synthetic(self, similarity: Similarity) -> dict[str, object]:
        """Return the arguments of a step."""
        encoded = HashedEncoder(dimension=DIMENSION).encode(self.texts(self._size.samples))
        turns = np.zeros((len(encoded), CELLS))
        return {"synthetic": similarity.synthetic(encoded, turns)}


def run(quick: bool) -> Result:
    """Measure voters, alternatives and the server's steps."""
    size = QUICK if quick else FULL
    executor: Executor = RayExecutor(workers=WORKERS) if size.ray else LocalExecutor()
    similarity = Similarity(dimension=DIMENSION)
    rule = ClippedVotes(similarity=similarity, threshold=0.5)
    with tempfile.TemporaryDirectory() as name:
        folder, batches = Path(name), Batches(size)
        corpus = folder / "corpus.jsonl"
        corpus.write_text(
            "".join(json.dumps({"text": one}) + "\n" for one in batches.texts(size.documents))
        )
        try:
            return _measured(size, folder, corpus, rule, batches, executor)
        finally:
            executor.close()


def _measured(
    size: Size, folder: Path, corpus: Path, rule: ClippedVotes, batches: Batches, executor: Executor
) -> Result:
    asked = batches.synthetic(rule.similarity)
    workers = executor.start(Voter, _specs(corpus, rule, WORKERS), repeat_lost_calls=True)
    turns = _turns(lambda: workers.call("votes", asked), size.turns)
    votes_ms = statistics.median(turns)
    early, late = _steps(size, folder, rule, batches, workers, executor)
    workers.close()
    alternatives = _alternatives(corpus, rule, asked)
    timings = harness.interleave(alternatives, turns=size.turns)
    others = {
        name: statistics.median(_turns(one_voter(corpus, other, asked), size.turns))
        for name, other in _other_rules(rule).items()
    }
    cells = [
        {"part": name, "ms": 1e3 * one.wall_median, "CPU ms": 1e3 * one.cpu_median}
        for name, one in timings.items()
    ]
    cells += [
        {"part": f"one voter, {name}", "ms": ms, "CPU ms": None} for name, ms in others.items()
    ]
    cells += [
        {"part": f"votes of {WORKERS} workers", "ms": votes_ms, "CPU ms": None},
        {"part": f"votes of {WORKERS} workers, fastest turn", "ms": min(turns), "CPU ms": None},
        {"part": "step of the server, the first ones", "ms": early, "CPU ms": None},
        {"part": "step of the server, the last ones", "ms": late, "CPU ms": None},
    ]
    median = {name: one.cpu_median for name, one in timings.items()}
    return Result(
        cells=cells,
        ratios={
            "votes_vs_allowed": votes_ms / ASKED_MS,
            "vs_bound": median[OURS] / median[BOUND],
            "vs_float64": median[OURS] / median[PLAIN],
            "late_vs_early": late / early,
        },
        notes=(
            f"{size.documents:,} documents, {size.samples} texts a step, {DIMENSION} numbers a"
            f" vector; {size.steps} steps of the server, each with a ledger's block, noise and a"
            " checkpoint on disk.",
        ),
        facts={"votes_ms": round(votes_ms, 2), "documents": size.documents},
    )


def _specs(corpus: Path, rule: VoteRule, workers: int) -> list[VoterSpec]:
    return [
        VoterSpec(
            ref=CorpusRef(path=str(corpus), index=index, count=workers),
            encoder=HashedEncoder(dimension=DIMENSION),
            similarity=rule.similarity,
            rule=rule,
        )
        for index in range(workers)
    ]


def _turns(work: Callable[[], object], turns: int) -> list[float]:
    """Return the milliseconds of each turn, after one that is not counted."""
    work()
    found = []
    for _ in range(turns):
        start = time.perf_counter()
        work()
        found.append(1e3 * (time.perf_counter() - start))
    return found


def one_voter(
    corpus: Path, rule: VoteRule, asked: dict[str, object]
) -> Callable[[], NDArray[np.int64]]:
    """Return what one voter of the whole corpus does in a step."""
    voter = Voter(_specs(corpus, rule, 1)[0])
    return lambda: voter.votes(**asked)  # type: ignore[arg-type]


def _alternatives(
    corpus: Path, rule: ClippedVotes, asked: dict[str, object]
) -> dict[str, Alternative]:
    documents = Voter(_specs(corpus, rule, 1)[0])._documents.vectors
    texts = asked["synthetic"].vectors.T.copy()  # type: ignore[attr-defined]
    wide, wide_texts = documents / rule.similarity.scale, texts / rule.similarity.scale

    def plain() -> NDArray[np.float64]:
        scores = wide.astype(np.float64) @ wide_texts.astype(np.float64)
        return np.clip(scores, 0, rule.threshold).sum(axis=0)

    return {
        OURS: Alternative(run=one_voter(corpus, rule, asked)),
        PLAIN: Alternative(run=plain),
        BOUND: Alternative(run=lambda: documents @ texts),
    }


def _other_rules(rule: ClippedVotes) -> dict[str, VoteRule]:
    return {
        "soft": SoftVotes(similarity=rule.similarity),
        "centred": CentredVotes(similarity=rule.similarity, clip_norm=1.0),
    }


def _steps(
    size: Size,
    folder: Path,
    rule: VoteRule,
    batches: Batches,
    workers: WorkerGroup,
    executor: Executor,
) -> tuple[float, float]:
    """Return the milliseconds of the server's first steps and of its last ones, medians."""
    rounds = size.steps * size.samples
    budget = PrivacyBudget(epsilon=1.0, delta=1e-6, unit="document")
    release = vote_release(rule, budget=budget, rounds=rounds)
    ledger = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    ledger.set_budget(dataset="benchmark/texts-v0", fingerprint="f" * 64, budget=budget)
    ledger.open_together(
        [
            Charge(
                entry_id=RUN_ID,
                kind="rounds",
                dataset="benchmark/texts-v0",
                fingerprint="f" * 64,
                unit=budget.unit,
                relation=budget.relation,
                epsilon=budget.epsilon,
                delta=budget.delta,
                max_rounds=rounds,
                event=charged_rounds([release.event]),
            )
        ]
    )
    spec = QueryServerSpec(
        run_id=RUN_ID,
        checkpoint=folder / "answers.safetensors",
        rounds=rounds,
        max_rounds=rounds,
        block_rounds=rounds,
        ledger=ledger,
        workers=workers,
        method="votes",
        release=release,
    )
    server = executor.start(QueryServer, [spec], service=True)
    seconds = []
    for step in range(size.steps):
        asked = {"arguments": batches.synthetic(rule.similarity), "rounds": size.samples}
        start = time.perf_counter()
        server.call("answer", asked | {"query": str(step)})
        seconds.append(time.perf_counter() - start)
    server.close()
    part = max(1, size.steps // 10)
    return 1e3 * statistics.median(seconds[1 : part + 1]), 1e3 * statistics.median(seconds[-part:])


if __name__ == "__main__":
    harness.main("votes", run)
