"""What a run's workers and server were given and gave, noted down as it happens."""

import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.marginals import program
from distributed_privrl.marginals.counting import CountWorker
from distributed_privrl.methods.policy_value import program as value_program
from distributed_privrl.methods.policy_value.program import SumWorker
from distributed_privrl.methods.privorl.curiosity import NovelUpdate
from distributed_privrl.methods.value_iteration.counts import CountWorker as VisitWorker
from distributed_privrl.methods.value_iteration.counts import StepCounts
from distributed_privrl.methods.value_iteration.statistics import StatisticsWorker
from distributed_privrl.methods.value_iteration.tabular import TabularProgram
from distributed_privrl.privacy import noise
from distributed_privrl.privacy.choosing import SecureChooser
from distributed_privrl.privacy.exact_releases import DiscreteGaussianRelease
from distributed_privrl.privacy.ledger import entry_secrets
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.sampling import SlotCoins
from distributed_privrl.rounds.server import ParameterServer, ServerSpec
from distributed_privrl.rounds.worker import LocalUpdateWorker, WorkerSpec
from tests.gates.leak_secrets import Secrets


def spy(
    patch: pytest.MonkeyPatch,
    owner: type | types.ModuleType,
    name: str,
    note: Callable[..., Any],
) -> None:
    """Tell ``note`` what a method or function gave, and what it was given."""
    right = getattr(owner, name)

    def spied(*arguments: Any, **keywords: Any) -> Any:
        given = [one.copy() if isinstance(one, np.ndarray) else one for one in arguments]
        result = right(*arguments, **keywords)
        note(result, *given)
        return result

    patch.setattr(owner, name, spied)


def watch(patch: pytest.MonkeyPatch, secrets: Secrets, seen: dict[str, list[Any]]) -> None:
    """Note down keys, positions, sums, counts, scores and draws as they come into being."""

    def urandom(count: int) -> bytes:
        secrets.keys.append(np.random.default_rng().bytes(count))
        return secrets.keys[-1]

    for module in (noise, entry_secrets):
        patch.setattr(module, "os", types.SimpleNamespace(urandom=urandom))

    def spread(_: Any, *given: Any) -> None:
        seen["deviations"].append(given[-2] * given[-1])

    spy(patch, SlotCoins, "draw", lambda result, *_: secrets.positions.append(result))
    spy(patch, SecureNoise, "_add_normals", spread)
    worker, server = LocalUpdateWorker, ParameterServer
    spy(patch, worker, "clipped_sum", lambda result, *_: secrets.sums.append(result.copy()))
    counts = secrets.counts
    spy(patch, CountWorker, "columns", lambda result, *_: counts.append(result.copy()))
    spy(patch, CountWorker, "tables", lambda result, *_: counts.extend(map(np.copy, result)))
    spy(patch, SumWorker, "sums", lambda result, *_: counts.append(result.copy()))
    spy(patch, value_program, "unit_integers", lambda result, *_: counts.append(result.copy()))
    spy(patch, program, "score", lambda _, given, *__: counts.append(given))
    choose = "choose_exponential"
    for release in ("add_discrete_gaussian", "add_discrete_laplace"):
        spy(patch, SecureNoise, release, lambda _, __, values, *___: counts.append(values))

    def scored(_: Any, __: Any, scores: Any) -> None:
        secrets.scores.append(np.array(scores, np.int64))

    spy(patch, SecureChooser, choose, scored)
    spy(patch, worker, "__init__", lambda _, __, spec: seen["workers"].append(spec))
    spy(patch, server, "__init__", lambda _, __, spec: seen["servers"].append(spec))
    _watch_statistics(patch, secrets)


def _watch_statistics(patch: pytest.MonkeyPatch, secrets: Secrets) -> None:
    """Note down what value iteration counts and sums: by worker, and of everybody in visits."""
    counts = secrets.counts

    def counted(result: StepCounts, *_: Any) -> None:
        secrets.positions.extend((result.cells.copy(), result.pairs.copy()))
        counts.extend((result.counts.copy(), result.reward_sums.copy()))

    def visits(result: NDArray[np.int64], program: TabularProgram, *_: Any) -> None:
        layout = program.settings.layout
        exact = result * program.settings.unit
        counts.append(exact[: layout.pairs * (layout.successors + 1)].astype(np.int64))

    spy(patch, VisitWorker, "counts", counted)
    spy(patch, TabularProgram, "_summed", visits)
    for name in ("variance_statistics", "value_statistics"):
        spy(patch, StatisticsWorker, name, lambda result, *_: counts.extend(map(np.copy, result)))

    def given(_: Any, release: DiscreteGaussianRelease, steps: NDArray[np.int64], *__: Any) -> None:
        secrets.learned.append(steps * release.lattice)

    spy(patch, DiscreteGaussianRelease, "release", given)


class Watched:
    """What a run's workers, server and public update were given and gave."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.workers: list[WorkerSpec] = []
        self.servers: list[ServerSpec] = []
        self.rounds: list[tuple[NDArray[Any], int, NDArray[Any]]] = []
        worker, server = LocalUpdateWorker, ParameterServer
        spy(patch, worker, "__init__", lambda _, __, spec: self.workers.append(spec))
        spy(patch, server, "__init__", lambda _, __, spec: self.servers.append(spec))
        spy(patch, NovelUpdate, "vector_sum", self._note_round)

    def _note_round(self, result: NDArray[Any], _: Any, vector: NDArray[Any], index: int) -> None:
        self.rounds.append((vector, index, result.copy()))
