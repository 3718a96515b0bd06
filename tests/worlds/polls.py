"""Voters, a server of queries and a ledger, in one process: a poll of a small corpus."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from distributed_privrl.core.executor import Executor, LocalExecutor, WorkerGroup
from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.methods.dprft.releases import VoteRelease, embedding_release, vote_release
from distributed_privrl.methods.dprft.similarity import Similarity
from distributed_privrl.methods.dprft.voter import Voter, VoterSpec
from distributed_privrl.methods.dprft.votes import VoteRule
from distributed_privrl.privacy.events import charged_rounds
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.rounds.queries import QueryServer, QueryServerSpec
from tests.worlds.corpora import WrittenVectors
from tests.worlds.ledgers import ACCOUNT, open_run, set_budget, url_of

RUN_ID = "run-poll"
UNIT = {"unit": "document", "relation": Relation.REPLACE_WITH_NULL}


@dataclass(frozen=True, kw_only=True)
class Poll:
    """Settings of a poll.

    Args:
        folder: of ledger and checkpoint.
        corpus: a file of documents.
        rule: of votes; None: the sum of vectors.
        similarity: of texts.
        rounds: planned.
        spare: beside them.
        workers: voters.
        insecure_key: seeds the noise.
        private: whether there is noise.
    """

    folder: Path
    corpus: Path
    rule: VoteRule | None
    similarity: Similarity
    rounds: int = 12
    spare: int = 4
    workers: int = 2
    insecure_key: int | None = 5
    private: bool = True
    epsilon: float = 2.0

    @property
    def budget(self) -> PrivacyBudget:
        return PrivacyBudget(epsilon=self.epsilon, delta=1e-6, **UNIT)  # type: ignore[arg-type]

    @property
    def release(self) -> VoteRelease | None:
        if not self.private:
            return None
        if self.rule is None:
            return embedding_release(budget=self.budget)
        return vote_release(self.rule, budget=self.budget, rounds=self.rounds + self.spare)

    @property
    def encoder(self) -> WrittenVectors:
        return WrittenVectors(self.similarity.dimension)

    @property
    def ledger(self) -> Ledger:
        return Ledger(url_of(self.folder))

    @property
    def checkpoint(self) -> Path:
        return self.folder / "answers.safetensors"

    def voters(self) -> list[VoterSpec]:
        return [
            VoterSpec(
                ref=CorpusRef(path=str(self.corpus), index=index, count=self.workers),
                encoder=self.encoder,
                similarity=self.similarity,
                rule=self.rule,
            )
            for index in range(self.workers)
        ]

    @contextmanager
    def server(self, executor: Executor | None = None) -> Iterator[WorkerGroup]:
        """Start voters and server; the same folder again resumes."""
        release, ledger = self.release, self.ledger
        if release is not None and ledger.reserved(RUN_ID) is None:
            set_budget(ledger, epsilon=10.0, delta=1e-4, **UNIT)
            open_run(
                ledger,
                RUN_ID,
                epsilon=self.epsilon,
                delta=1e-6,
                max_rounds=self.rounds + self.spare,
                event=charged_rounds([release.event]),
                **ACCOUNT,
                **UNIT,
            )
        own = executor or LocalExecutor()
        workers = own.start(Voter, self.voters(), repeat_lost_calls=True)
        spec = QueryServerSpec(
            run_id=RUN_ID,
            checkpoint=self.checkpoint,
            rounds=self.rounds,
            max_rounds=self.rounds + self.spare,
            block_rounds=self.rounds + self.spare,
            ledger=ledger if self.private else None,
            insecure_key=self.insecure_key,
            workers=workers,
            method="vector_sum" if self.rule is None else "votes",
            release=release,
        )
        server = own.start(QueryServer, [spec], service=True)
        try:
            yield server
        finally:
            server.close()
            workers.close()
