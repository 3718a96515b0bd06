"""The server of queries: one noisy answer to each, drawn when it is asked, and kept."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.rounds.round_server import RoundServer, RoundServerSpec

QUERIES, ANSWERS = "queries", "answers"
"""Of a checkpoint: names and sizes as JSON, and all answers in one vector."""


class QueryRelease(Protocol):
    """Draws the noise of an answer; what its rounds cost is in the plan of its stage."""

    def rounds_of(self, size: int) -> int:
        """Return how many rounds an answer of so many numbers is charged as."""
        ...

    def release(
        self, total: NDArray[np.int64], source: NoiseSource, *, tag: int
    ) -> NDArray[np.int64]:
        """Return the sum (N,) over all units with fresh noise."""
        ...


@dataclass(frozen=True, kw_only=True)
class QueryServerSpec(RoundServerSpec):
    """What a server of queries is built from, beside `RoundServerSpec`.

    Args:
        workers: hold the units.
        method: of the workers, that returns whole numbers (N,) to be summed.
        release: draws the noise; None without privacy; goes with the ledger.
    """

    workers: WorkerGroup
    method: str
    release: QueryRelease | None


class QueryServer(RoundServer):
    """Answers queries that are not known in advance, each once.

    Privacy: unit, relation and sensitivity are the release's. A query reserves as many rounds as it
    says, and they are counted before the noise is drawn, once; the answer is in the checkpoint
    before anybody gets it, and asking again returns it. An answer that was drawn and is in no
    checkpoint is spent: the query, asked again, is drawn anew and paid for anew, from spare rounds.
    Sums before noise stay in this process. What is asked may depend on earlier answers: each query
    costs what its rounds cost, whatever it asks, and their number is bounded in advance. How many
    were asked depends on answers, too; so `advance` spends the rest, and the charge stays whole.
    """

    def __init__(self, spec: QueryServerSpec) -> None:
        if (spec.release is None) != (spec.ledger is None):
            raise UnsafeError("noise and ledger go together: what is drawn must be charged")
        self._spec = spec
        self._answers: dict[str, NDArray[np.int64]] = {}
        super().__init__(spec)

    def stored(self, query: str) -> NDArray[np.int64] | None:
        """Return the answer that a query got; None: it was never answered.

        Raises:
            StorageError: it still cannot be written, and nobody gets it before.
        """
        self._close_unwritten()
        return self._answers.get(query)

    def answer(self, query: str, arguments: Mapping[str, Any], rounds: int) -> NDArray[np.int64]:
        """Return the noisy sum (N,) over all units of what workers return for a query.

        Args:
            query: names it; the same name is the same query and gets the same answer.
            arguments: of the workers' method; public.
            rounds: that it costs.

        Raises:
            BudgetError: fewer are left; nothing was drawn.
            StorageError: the answer, or what it cost, could not be written: ask again.
            UnsafeError: the answer is charged as another number of rounds; nothing was drawn.
        """
        known = self.stored(query)
        if known is not None:
            self._check_rounds(query, len(known), rounds)
            return known
        left = self._target - self._round
        if not 0 < rounds <= left:
            raise BudgetError(
                f"{self._plan.run_id}: a query costs {rounds} rounds and {left} are left: this is"
                " what the run paid for; raise its number of queries, and epsilon with it or noise"
            )
        answers = self._spec.workers.call(self._spec.method, arguments)
        total: NDArray[np.int64] = np.sum(answers, axis=0, dtype=np.int64)
        self._check_rounds(query, len(total), rounds)
        self._reserve(rounds)
        self._count_round(rounds)
        if self._spec.release is not None and self._noise is not None:
            total = self._spec.release.release(total, self._noise, tag=self._round)
        self._answers[query] = total
        self._round += rounds
        self._close_block()
        return total

    def _check_rounds(self, query: str, size: int, rounds: int) -> None:
        release = self._spec.release
        if release is not None and release.rounds_of(size) != rounds:
            raise UnsafeError(
                f"query {query[:12]} would pay for {rounds} rounds, and its answer of {size}"
                f" numbers costs {release.rounds_of(size)}"
            )

    def _close_unwritten(self) -> None:
        """Write an answer that was drawn and could not be written."""
        if self._block_drawn:
            self._close_block()

    def _run_round(self) -> None:
        """Spend a round that no query asked for, without a draw."""
        self._count_round()
        self._round += 1

    def _tensors(self) -> dict[str, Tensor]:
        sizes = {name: len(one) for name, one in self._answers.items()}
        names = np.frombuffer(json.dumps(sizes).encode(), np.uint8).copy()
        numbers = np.concatenate([np.zeros(0, np.int64), *self._answers.values()])
        return {QUERIES: torch.from_numpy(names), ANSWERS: torch.from_numpy(numbers)}

    def _restore(self, tensors: dict[str, Tensor], rounds: int) -> None:
        sizes: dict[str, int] = json.loads(tensors[QUERIES].numpy().tobytes())
        ends = list(itertools.accumulate(sizes.values()))
        parts = np.split(tensors[ANSWERS].numpy(), ends[:-1])
        self._answers = {name: one.copy() for name, one in zip(sizes, parts, strict=True)}
