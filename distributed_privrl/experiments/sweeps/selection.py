"""Private selection: the best of a hidden number of trials, for one charge made before the start.

Reference: Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy" (2022).
"""

import math
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError, WorkerLostError
from distributed_privrl.core.executor import Executor, WorkerGroup
from distributed_privrl.core.places import ObjectUri
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.accounts import check_inputs, inspect_inputs
from distributed_privrl.experiments.directory import RunDirectory, bounds_place, holds_something
from distributed_privrl.experiments.publishing import publisher_of
from distributed_privrl.experiments.registry import plan_run, planned_events
from distributed_privrl.experiments.run import check_datasets
from distributed_privrl.experiments.sweeps.config import PrivateSelection, ScoreConfig, Sweep
from distributed_privrl.experiments.sweeps.jobs import FILE, claim
from distributed_privrl.experiments.sweeps.memory import MEMORY, check_memory, clear_left
from distributed_privrl.experiments.sweeps.pool import PoolSpec, SelectionWorker, Winner
from distributed_privrl.experiments.sweeps.private import check_rows_kept
from distributed_privrl.experiments.sweeps.winner import STAGE, release_winner
from distributed_privrl.experiments.trainers import asked_trainers, check_agents
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.events import Event, RepeatAndSelectEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.verdict import Grade, check_useful

SPENT = "(what was charged is spent, and the selection does not go on: start one in another --out)"
_DYING_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Selected:
    """What a private selection ends in.

    Args:
        config: of the winner; None: no trial had a score, and nothing was released.
        score: of the winner.
        certificate: of the release; None: there is none.
        epsilon: that was charged.
        released: id of the dataset or path of the policy.
    """

    config: RunConfig | None
    score: float | None
    certificate: Certificate | None
    epsilon: float
    released: str


def select(
    sweep: Sweep,
    executor: Executor,
    *,
    out: Path,
    ledger_url: str | None = None,
    store: DatasetStore | None = None,
    progress: Progress = silent,
    anyway: bool = False,
    memory: Path = MEMORY,
    more_trainers: Mapping[str, Trainer] | None = None,
) -> Selected:
    """Run a hidden number of trials, and release the best one with a certificate.

    Args:
        sweep: with a `PrivateSelection`.
        executor: where the pool's processes run; stays open.
        out: a new folder, which the winner gets as its run's.
        ledger_url: the ledger; None: ``PRIVRL_LEDGER`` or the user's data folder.
        store: datasets; None: Minari's folder.
        progress: told that trials run; not how many.
        anyway: run what is useless at each end of each axis, too.
        memory: a folder in memory, for what losers make.
        more_trainers: trainers for ``evaluation.trainers`` beside the plain loops, by name; none
            of them may give its rows to other processes.

    Raises:
        ConfigError: configuration or datasets are wrong, or ``out`` is not empty; nothing has been
            drawn.
        BudgetError: no budget, or not enough of it; nothing has been drawn.
        UnsafeError: as `experiments.run.run`, there is no folder in memory, or a trainer hands its
            rows on; nothing has been drawn.
        UselessError: as `experiments.run.run`; nothing has been drawn.
        WorkerLostError: a process of the pool died. If that was after the charge, it is spent.
        StorageError: the disk is full, likewise.

    Privacy: unit and relation of the configuration; event ``repeat_and_select`` over all events
    that a trial may be charged for. The charge is made before the number of trials is drawn, and
    never again: a selection that ends early is spent. What leaves is the winner's release,
    configuration and score, which is computed from the release and public things; or that no trial
    had a score; or that a process died, as which any trial that ends one counts as the best.
    """
    selection, store = sweep.selection, store or DatasetStore()
    assert isinstance(selection, PrivateSelection)
    check_memory(memory)
    _check_new(out)
    _check_bounds_here(sweep.base)
    check_rows_kept(asked_trainers(sweep.base, more_trainers))
    directory, config = RunDirectory(out.absolute()), sweep.base
    event = selection.count.event(_events(sweep, store, anyway=anyway))
    cost = _cost(config, event)
    seen = _with_judge(config, selection.score, store)
    check_datasets(seen, store)
    check_agents(config, store, more_trainers=more_trainers)
    publisher_of(config, store, directory).check_free()
    claim(directory.path / FILE, yaml.safe_dump(sweep.to_json(), sort_keys=False))
    charge: Charge | None = None
    with closing(Ledger(ledger_url)) as ledger:
        winners: list[Winner] = []
        try:
            check_inputs(seen, store, ledger)
            found = inspect_inputs(seen, store, ledger, progress=progress)
            directory.begin(SecureNoise.name)
            charge = _charge(config, event, cost, directory.run_id, found.identity)
            spec = _pool_spec(sweep, event, store.place, memory, more_trainers or {})
            with _pool(spec, executor, selection.actors) as group:

                def draw() -> dict[str, Any] | None:
                    progress("private selection", 0, 1, "how many trials there are, nobody learns")
                    winners.extend(_won(sweep, group))
                    progress("private selection", 1, 1)
                    shown = [{"config": dict(one.config), "score": one.score} for one in winners]
                    return shown[0] if shown else None

                _, entry = ledger.release_once(charge, draw=draw)
            return _released(winners, event, directory, store, ledger, entry.id)
        except BaseException as error:
            if charge is None or ledger.reserved(charge.entry_id) is None:
                directory.discard()  # refused before anything was charged
            else:
                error.add_note(SPENT)
            raise


def _check_new(out: Path) -> None:
    if not holds_something(out) or RunDirectory(out).only_refused:
        return
    if (out / FILE).exists():
        raise ConfigError(
            f"{out} holds a sweep, and a private selection does not go on in one: what was charged"
            " for it stays charged; choose another --out"
        )
    raise ConfigError(f"{out} is not empty: choose another --out")


def _events(sweep: Sweep, store: DatasetStore, *, anyway: bool) -> tuple[Event, ...]:
    """Return the events of a trial, which must be the same at all ends of all axes.

    Raises:
        ConfigError: an axis changes them.
        UselessError: at each end of each axis nothing but noise would be left.
    """
    events = planned_events(sweep.base, store)
    verdicts = [plan_run(sweep.base, store).verdict]
    first = {key: axis.corners[0] for key, axis in sweep.search.items()}
    for key, axis in sweep.search.items():
        for corner in axis.corners[1:]:
            config = sweep.config_of(first | {key: corner})
            if planned_events(config, store) != events:
                raise ConfigError(
                    f"search.{key} changes the noise of a trial, and one charge covers trials of"
                    " the same noise alone: leave it out"
                )
            verdicts.append(plan_run(config, store).verdict)
    if not anyway and all(one is not None and one.grade is Grade.HOPELESS for one in verdicts):
        check_useful(verdicts[:1])
    return events


def _with_judge(config: RunConfig, score: ScoreConfig, store: DatasetStore) -> RunConfig:
    """Return the run with the rows that its trials are judged by among the public ones.

    Raises:
        ConfigError: they were not declared public.
    """
    if score.by != "fidelity":
        return config
    judge = score.to or config.data.public[0]
    if not store.info(judge).declared_public:
        raise ConfigError(f"selection.score.to={judge} was not declared public")
    public = tuple(dict.fromkeys([*config.data.public, judge]))
    return config.model_copy(update={"data": config.data.model_copy(update={"public": public})})


def _cost(config: RunConfig, event: RepeatAndSelectEvent) -> float:
    """Return the epsilon that is charged.

    Raises:
        ConfigError: the accountant cannot take the events of a trial, or no delta is stated.
        UnsafeError: they have no finite epsilon together.
    """
    privacy = config.privacy
    relation = Relation(privacy.relation)
    cost = epsilon((event,), delta=privacy.delta, relation=relation, accountant="rdp")
    if not math.isfinite(cost):
        raise UnsafeError("the best of so many trials has no finite epsilon: add noise")
    return cost


def _charge(
    config: RunConfig, event: RepeatAndSelectEvent, cost: float, run_id: str, rows: str
) -> Charge:
    relation, data = Relation(config.privacy.relation), config.data
    return Charge(
        entry_id=f"{run_id}/{STAGE}",
        kind="release",
        dataset=data.sensitive,
        fingerprint=rows,
        unit=data.unit,
        relation=relation,
        epsilon=cost,
        delta=config.privacy.delta,
        event=event.model_dump(mode="json"),
        units=data.units if isinstance(data.units, int) else None,
    )


def _check_bounds_here(config: RunConfig) -> None:
    """Refuse bounds in an object store.

    Raises:
        UnsafeError: each trial would read them, and the store's log count the trials.
    """
    source = bounds_place(config)
    if isinstance(source, ObjectUri):
        raise UnsafeError(
            f"data.bounds={source}: each hidden trial would read it, and the store's log would tell"
            " how many there are: copy it into a file and name that"
        )


def _pool_spec(
    sweep: Sweep,
    event: RepeatAndSelectEvent,
    root: str,
    memory: Path,
    more: Mapping[str, Trainer],
) -> PoolSpec:
    data, score = sweep.base.data, sweep.selection.score
    return PoolSpec(
        values=sweep.values,
        root=root,
        reads=list(dict.fromkeys(filter(None, (data.sensitive, *data.public, score.to)))),
        score=score,
        events=[one.model_dump(mode="json") for one in event.events],
        memory=str(memory),
        trainers=sweep.base.evaluation.trainers,
        more=more,
    )


@contextmanager
def _pool(spec: PoolSpec, executor: Executor, actors: int) -> Iterator[WorkerGroup]:
    """Yield a constant number of processes that are ready; what they leave is destroyed."""
    group = executor.start(SelectionWorker, [spec] * actors)
    try:
        group.wait_for_lost()
        yield group
    finally:
        group.close()
        clear_left(Path(spec.memory), seconds=_DYING_SECONDS)


def _won(sweep: Sweep, group: WorkerGroup) -> list[Winner]:
    """Draw the number of trials and their configurations, run them, and return the best, if any."""
    trials = drawn_trials(sweep)
    shares = [{"trials": trials[number :: group.size]} for number in range(group.size)]
    try:
        best = best_of(group.call("run", per_worker=shares))
        wanted = [{"wanted": number == best} for number in range(group.size)]
        handed: Sequence[Winner | None] = group.call("hand_over", per_worker=wanted)
    except WorkerLostError:
        raise WorkerLostError(
            "a process of the private selection died: look at its node's memory"
        ) from None
    return [one for one in handed if one is not None]


def drawn_trials(sweep: Sweep) -> list[dict[str, Any]]:
    """Return independent draws of the search, as many as the law gives; all of it stays hidden."""
    selection = sweep.selection
    assert isinstance(selection, PrivateSelection)
    count = selection.count.draw()
    random = np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    return [{key: axis.draw(random) for key, axis in sweep.search.items()} for _ in range(count)]


def best_of(scores: Sequence[float | None]) -> int | None:
    """Return the position of the highest score, the first of equal ones; None: there is none."""
    known = [place for place, score in enumerate(scores) if score is not None]
    return max(known, key=lambda place: float(scores[place] or 0.0)) if known else None


def _released(
    winners: Sequence[Winner],
    event: RepeatAndSelectEvent,
    directory: RunDirectory,
    store: DatasetStore,
    ledger: Ledger,
    entry: str,
) -> Selected:
    if not winners:
        charged = ledger.reserved(entry)
        assert charged is not None
        return Selected(
            config=None, score=None, certificate=None, epsilon=charged.epsilon, released=""
        )
    winner = winners[0]
    config, certificate, released = release_winner(
        winner, event, directory, store, ledger, entry=entry
    )
    return Selected(
        config=config,
        score=winner.score,
        certificate=certificate,
        epsilon=float(certificate.epsilon or 0.0),
        released=released,
    )
