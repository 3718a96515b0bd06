"""Agents trained on a dataset, trainers x seeds, in parallel where CPUs allow."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import (
    ConfigError,
    PrivRLError,
    StorageError,
    VerificationError,
    WorkerLostError,
)
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.progress import Progress
from distributed_privrl.data.proper import proper_transitions
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import register
from distributed_privrl.evaluation.off_policy.judge import decided
from distributed_privrl.evaluation.returns import LearningCurve, Returns
from distributed_privrl.evaluation.trainer import (
    Spaces,
    Trainer,
    find_trainer,
    train,
    train_and_evaluate,
)
from distributed_privrl.experiments.clearance import cleared, proven, release_of
from distributed_privrl.experiments.halves import judge_of, training_half
from distributed_privrl.privacy.certificate import hash_output

EVALUATIONS = 10

TRAINING = "training agents"
TRAINING_ON_PRIVATE = "agents on rows that may not leave"
"""What progress calls it; how long it takes depends on the rows, so no time is shown."""

_LONGEST_REASON = 300

AGENTS = "agents"
"""Folder of the agents' results, one file each, which a resume goes on from."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One agent.

    Args:
        root: the dataset store's folder.
        dataset: what it is trained on.
        content: tells one content of the dataset from another, see `content_of`.
        environment: where it is evaluated; empty if it is judged on rows.
        trainer: name of the trainer.
        seed: its public seed.
        steps: gradient steps.
        episodes: episodes of each evaluation.
        options: the agent's settings.
        more: trainers beside the plain loops.
        judged_on: id of real episodes that its policy is valued on, instead of an environment.
        judged_content: tells one content of those from another.
        device: that a plain loop computes on.
    """

    root: str
    dataset: str
    content: str
    environment: str
    trainer: str
    seed: int
    steps: int
    episodes: int
    options: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Trainer] = field(default_factory=dict)
    judged_on: str = ""
    judged_content: str = ""
    device: str = "cpu"

    @property
    def cell(self) -> str:
        """Name of the agent among those of an evaluation."""
        return f"{self.trainer}-{self.seed}"

    def record(self) -> dict[str, Any]:
        """Return what the agent's result depends on."""
        names: tuple[str, ...]
        names = ("dataset", "content", "environment", "trainer", "seed", "steps", "episodes")
        names += ("judged_on", "judged_content") if self.judged_on else ()
        return {
            **{name: getattr(self, name) for name in names},
            "options": json.loads(json.dumps(dict(self.options))),
        }


class AgentTrial:
    """Trains and evaluates one agent."""

    def __init__(self, spec: TrialSpec) -> None:
        self._spec = spec

    def run(
        self, told: Callable[[int], None] | None = None, *, quiet: bool = False
    ) -> dict[str, Any]:
        """Return the agent's learning curve, or what real episodes say of it, and its settings.

        Rows that are not proper (a number that is not finite, an unknown category) are left out.

        Args:
            told: called with the gradient steps taken, after each evaluation.
            quiet: an error is the result; see `run_trials`.

        Raises:
            UnsafeError: the trainer shares its rows, and they may not leave.
            VerificationError: the rows are not those that were there when the evaluation began.

        Privacy: a trainer that hands its rows to other processes gets released and public ones
        alone; no noise is added and no event charged here. What an agent earns is shown as of the
        rows that were looked at before, so others under the same id are refused. An executor may
        keep the text of what an actor raises, which may quote rows: of rows that may not leave
        nothing is raised.
        """
        try:
            return self._train(told)
        except Exception as error:
            if not quiet:
                raise
            return failure(self._spec, error)

    def _train(self, told: Callable[[int], None] | None) -> dict[str, Any]:
        spec = self._spec
        register()
        store = DatasetStore(spec.root)
        info = store.info(spec.dataset)
        trainer = find_trainer(spec.trainer, spec.options, more=spec.more, device=spec.device)
        if spec.judged_on == spec.dataset:
            rows = training_half(store, spec.dataset)
        else:
            rows = proper_transitions(store, spec.dataset)
        if trainer.released_rows_only:  # who starts trials has the ledger, and asked it
            rows = proven(rows, cleared(store, spec.dataset, reader=trainer.name, ledger=None))
        _check_content(store, spec.dataset, spec.content)
        spaces = Spaces(observation=info.observation_space, action=info.action_space)
        found = {**spec.record(), "agent": trainer.agent}
        if spec.judged_on:
            policy = train(trainer, rows, spaces, seed=spec.seed, steps=spec.steps)
            judge = judge_of(store, spec.judged_on)
            _check_content(store, spec.judged_on, spec.judged_content)
            judgement = judge.judged(decided(policy, judge.actions))
            return {**found, "judgement": judgement.to_json()}
        _, curve = train_and_evaluate(
            trainer,
            rows,
            spaces,
            environment_id=spec.environment,
            seed=spec.seed,
            steps=spec.steps,
            evaluations=evaluations_of(spec.steps),
            episodes=spec.episodes,
            told=told,
        )
        return {
            **found,
            "curve_steps": list(curve.steps),
            "curve_returns": [list(returns.per_episode) for returns in curve.returns],
        }


def _check_content(store: DatasetStore, dataset: str, content: str) -> None:
    if content_of(store, dataset) != content:
        raise VerificationError(
            f"{dataset} was replaced while agents were trained on it: evaluate it anew"
        )


def content_of(store: DatasetStore, dataset: str) -> str:
    """Return what tells the content of a dataset from that of another of the same id.

    A release is told by its certificate's digest, other rows by a hash of their files.

    Raises:
        VerificationError: it claims a valid certificate that does not fit its files.
        UnsafeError: it is declared public and says otherwise, too.

    Privacy: the hash of private rows belongs in ``private/`` alone.
    """
    release = release_of(store, dataset)
    if release is not None and release.certificate is not None:
        return release.certificate.digest
    hashes = "".join(hash_output(path) for path in store.files(dataset))
    return hashlib.sha256(hashes.encode()).hexdigest()


def evaluations_of(steps: int) -> int:
    """Return how often an agent is evaluated: ten times, or as often below as divides ``steps``."""
    return next(count for count in range(min(EVALUATIONS, steps), 0, -1) if steps % count == 0)


def run_trials(
    specs: Sequence[TrialSpec],
    executor: Executor,
    *,
    parallel: int,
    progress: Progress,
    kept: Path | None = None,
    stage: str = TRAINING,
) -> list[dict[str, Any]]:
    """Run every trial, ``parallel`` at a time, and return their results in order.

    A trial that fails does not end the others: its result has ``failed``, the kind of error, and
    ``reason``, its text in one line, instead of a curve. What a user can put right (a
    `PrivRLError`) ends them all, except where rows may not leave.

    Privacy: the text of an error may quote rows, so it is never kept here. While rows that may not
    leave are read, an error of any kind is a result like others: to end at it would tell of them.

    Args:
        specs: the agents.
        executor: where they are trained.
        parallel: how many actors fit at once; more would wait for CPUs for ever.
        progress: told how many gradient steps are done: as agents end, and, where they are trained
            in this process on rows that may leave, at each evaluation.
        kept: folder where each result is kept as it ends; results that lie there are taken from
            it, except failures, which are tried again. None: nothing is kept.
        stage: what ``progress`` is told: `TRAINING`, or `TRAINING_ON_PRIVATE` for rows that may
            not leave.

    Raises:
        ConfigError: ``kept`` has results of another evaluation.
    """
    found = {spec.cell: result for spec in specs if (result := _kept(kept, spec)) is not None}
    waiting = [spec for spec in specs if spec.cell not in found]
    total = sum(spec.steps for spec in specs)

    def tell(steps_of_running: int = 0) -> None:
        done = sum(spec.steps for spec in specs if spec.cell in found) + steps_of_running
        progress(stage, done, total, f"gradient steps; agents done {len(found)}/{len(specs)}")

    tell()
    if kept is not None:
        with storage_errors(f"make {kept}"):
            kept.mkdir(mode=0o755 if stage == TRAINING else 0o700, parents=True, exist_ok=True)
    told = tell if stage == TRAINING and isinstance(executor, LocalExecutor) else None
    for spec, result in _finished(waiting, executor, parallel, ends=stage == TRAINING, told=told):
        found[spec.cell] = result
        if kept is not None:
            write_atomically(_cell_path(kept, spec), json.dumps(without_reason(result)), mode=0o600)
        tell()
    return [found[spec.cell] for spec in specs]


def without_reason(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trial's result without the text of its error, which may quote rows or paths."""
    return {name: value for name, value in result.items() if name != "reason"}


def _finished(
    specs: Sequence[TrialSpec],
    executor: Executor,
    parallel: int,
    *,
    ends: bool,
    told: Callable[[int], None] | None,
) -> Iterator[tuple[TrialSpec, dict[str, Any]]]:
    """Yield each trial with its result as it ends; ``told`` of the steps where one runs alone."""
    if parallel == 1:
        yield from ((spec, _result(spec, executor, ends=ends, told=told)) for spec in specs)
        return
    with ThreadPoolExecutor(max_workers=parallel) as pool:
        running = {pool.submit(_result, spec, executor, ends=ends): spec for spec in specs}
        try:
            for future in as_completed(running):
                yield running[future], future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            executor.close()  # whoever still waits for an actor stops
            raise


def _result(
    spec: TrialSpec,
    executor: Executor,
    *,
    ends: bool,
    told: Callable[[int], None] | None = None,
) -> dict[str, Any]:
    """Train one agent; ``ends``: an error that a user can put right is raised, not a result."""
    group = executor.start(AgentTrial, [spec], repeat_lost_calls=True)
    try:
        shared: dict[str, Any] = {} if told is None else {"told": told}
        if not ends:
            shared["quiet"] = True
        result: dict[str, Any] = group.call("run", shared)[0]
    except Exception as error:
        if ends and isinstance(error, PrivRLError) and type(error) is not WorkerLostError:
            raise
        return failure(spec, error)
    finally:
        group.close()
    return result


def failure(spec: TrialSpec, error: Exception) -> dict[str, Any]:
    """Return the result of a trial that failed, and the text of its error."""
    cause = getattr(error, "cause", None) or error  # an executor may wrap what was raised
    reason = " ".join(str(cause).split())[:_LONGEST_REASON]
    return {**spec.record(), "failed": type(cause).__name__, "reason": reason}


def _cell_path(kept: Path, spec: TrialSpec) -> Path:
    return kept / f"{spec.cell}.json"


def _kept(kept: Path | None, spec: TrialSpec) -> dict[str, Any] | None:
    """Return the result that is kept of a trial, unless there is none or it failed."""
    if kept is None or not (path := _cell_path(kept, spec)).exists():
        return None
    with storage_errors(f"read {path}"):
        text = path.read_text()
    try:
        result = dict(json.loads(text))
    except ValueError as error:
        raise StorageError(f"{path} is damaged: delete it and go on with --resume") from error
    record = spec.record()
    if changed := [name for name, value in record.items() if result.get(name) != value]:
        raise ConfigError(
            f"{path} is of another evaluation ({', '.join(changed)} differ): go on with the same"
            " options, or delete the folder it is in to train anew"
        )
    return None if "failed" in result else result


def learning_curve(result: Mapping[str, Any]) -> LearningCurve:
    """Return the curve in the result of a trial that did not fail."""
    return LearningCurve(
        steps=tuple(result["curve_steps"]),
        returns=tuple(Returns(tuple(values)) for values in result["curve_returns"]),
    )
