"""Private selection: the best of a hidden number of trials, for one charge made before the start.

Reference: Papernot and Steinke, "Hyperparameter tuning with Renyi differential privacy" (2022).
"""

import json
import secrets
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.data.metadata import FILE_NAME as METADATA
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.transaction import new_dataset
from distributed_privrl.experiments.accounts import check_inputs, inspect_inputs
from distributed_privrl.experiments.agents import keep_trials
from distributed_privrl.experiments.directory import RunDirectory, holds_something
from distributed_privrl.experiments.publishing import RUN_KEY, publisher_of
from distributed_privrl.experiments.registry import parse_config, plan_run, planned_events
from distributed_privrl.experiments.reports import write_reports
from distributed_privrl.experiments.run import check_datasets, versions_of
from distributed_privrl.experiments.sweeps.config import PrivateSelection, Sweep
from distributed_privrl.experiments.sweeps.jobs import FILE
from distributed_privrl.experiments.sweeps.pool import (
    MEMORY,
    PoolSpec,
    SelectionWorker,
    Winner,
    clear_left,
)
from distributed_privrl.experiments.trainers import check_agents
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.certificate import (
    Certificate,
    Stage,
    build_certificate,
    sign_certificate,
)
from distributed_privrl.privacy.events import RepeatAndSelectEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.ledger.records import Charge
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.reservations import check_charged
from distributed_privrl.privacy.units import Relation

ENTRY = "selection"
RESULT = "selection.json"
HIDDEN_COUNT = "the_number_of_trials_and_the_time_they_took_stay_hidden"
_FREE_BYTES = 256 * 2**20


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
    sign_key: Path | None = None,
    memory: Path = MEMORY,
) -> Selected:
    """Run a hidden number of trials, and release the best one with a certificate.

    Args:
        sweep: with a `PrivateSelection`.
        executor: where the pool's processes run; stays open.
        out: a new folder, which the winner gets as its run's.
        ledger_url: the ledger; None: ``PRIVRL_LEDGER`` or the user's data folder.
        store: datasets; None: Minari's folder.
        progress: told that trials run; not how many.
        sign_key: PEM file of an Ed25519 key that signs the certificate.
        memory: a folder in memory, for what losers make.

    Raises:
        ConfigError: configuration or datasets are wrong; nothing has been drawn.
        BudgetError: no budget, or not enough of it; nothing has been drawn.
        UnsafeError: as `experiments.run.run`, or there is no folder in memory.

    Privacy: unit and relation of the configuration; event ``repeat_and_select`` over all events
    that the costliest trial may be charged for. The charge is made before the number of trials is
    drawn, and never again: a selection that dies is spent. What leaves is the winner's release,
    configuration and score, which is computed from the release and public things.
    """
    selection, store = sweep.selection, store or DatasetStore()
    assert isinstance(selection, PrivateSelection)
    _check_memory(memory)
    if holds_something(out):
        raise ConfigError(f"{out} is not empty: choose another --out")
    directory, config = RunDirectory(out.absolute()), sweep.base
    event = selection.count.event(_events(sweep, store))
    check_datasets(config, store)
    check_agents(config, store)
    publisher_of(config, store, directory).check_free()
    with closing(Ledger(ledger_url)) as ledger:
        check_inputs(config, store, ledger)
        found = inspect_inputs(config, store, ledger, progress=progress)
        directory.begin(SecureNoise.name)
        charge = _charge(config, event, directory.run_id, found.identity)
        winners: list[Winner] = []

        def draw() -> dict[str, Any] | None:
            progress("private selection", 0, 1, "how many trials there are, nobody learns")
            winner = _won(sweep, event, executor, root=store.root, memory=memory)
            progress("private selection", 1, 1)
            if winner is None:
                return None
            winners.append(winner)
            return {"config": dict(winner.config), "score": winner.score}

        try:
            _, entry = ledger.release_once(charge, draw=draw)
        except (BudgetError, ConfigError, UnsafeError):
            if ledger.reserved(charge.entry_id) is None:
                directory.discard()  # refused before anything was charged
            raise
        write_atomically(directory.path / FILE, yaml.safe_dump(sweep.to_json(), sort_keys=False))
        if not winners:
            return Selected(
                config=None, score=None, certificate=None, epsilon=entry.epsilon, released=""
            )
        return _released(winners[0], event, directory, store, ledger, entry.id, sign_key)


def _check_memory(memory: Path) -> None:
    """Check that losers can lie in memory, and destroy what killed processes left there."""
    if not memory.is_dir():
        raise UnsafeError(
            f"there is no {memory}: what the losers of a private selection make would lie on a disk"
        )
    clear_left(memory)
    if (free := shutil.disk_usage(memory).free) < _FREE_BYTES:
        raise UnsafeError(
            f"{memory} has {free // 2**20} MiB free, and what trials make lies there: give it more"
            " (docker run --shm-size=4g)"
        )


def _events(sweep: Sweep, store: DatasetStore) -> tuple[Any, ...]:
    """Return the events of a trial, which must be the same at all ends of all axes.

    Raises:
        ConfigError: an axis changes them.
    """
    events = planned_events(sweep.base, store)
    first = {key: axis.corners[0] for key, axis in sweep.search.items()}
    for key, axis in sweep.search.items():
        for corner in axis.corners[1:]:
            if planned_events(sweep.config_of(first | {key: corner}), store) != events:
                raise ConfigError(
                    f"search.{key} changes the noise of a trial, and one charge covers trials of"
                    " the same noise alone: leave it out"
                )
    return events


def _charge(config: RunConfig, event: RepeatAndSelectEvent, run_id: str, rows: str) -> Charge:
    relation, data = Relation(config.privacy.relation), config.data
    return Charge(
        entry_id=f"{run_id}/{ENTRY}",
        kind="release",
        dataset=data.sensitive,
        fingerprint=rows,
        unit=data.unit,
        relation=relation,
        epsilon=epsilon((event,), delta=config.privacy.delta, relation=relation, accountant="rdp"),
        delta=config.privacy.delta,
        event=event.model_dump(mode="json"),
        units=data.units if isinstance(data.units, int) else None,
    )


def _won(
    sweep: Sweep, event: RepeatAndSelectEvent, executor: Executor, *, root: Path, memory: Path
) -> Winner | None:
    """Draw the number of trials and their configurations, run them, and return the best one."""
    selection = sweep.selection
    assert isinstance(selection, PrivateSelection)
    trials = drawn_trials(sweep)
    spec = PoolSpec(
        values=sweep.values,
        root=str(root.absolute()),
        score=selection.score,
        events=[one.model_dump(mode="json") for one in event.events],
        memory=str(memory),
    )
    group = executor.start(SelectionWorker, [spec] * selection.actors)
    try:
        shares = [{"trials": trials[number :: selection.actors]} for number in range(group.size)]
        best = best_of(group.call("run", per_worker=shares))
        wanted = [{"wanted": number == best} for number in range(group.size)]
        handed: Sequence[Winner | None] = group.call("hand_over", per_worker=wanted)
    finally:
        group.close()
        clear_left(memory)
    return None if best is None else handed[best]


def drawn_trials(sweep: Sweep) -> list[dict[str, Any]]:
    """Return independent draws of the search, as many as the law gives; all of it stays hidden."""
    selection = sweep.selection
    assert isinstance(selection, PrivateSelection)
    count = selection.count.draw()
    random = np.random.Generator(np.random.Philox(key=secrets.randbits(128)))
    return [{key: axis.draw(random) for key, axis in sweep.search.items()} for _ in range(count)]


def best_of(scores: Sequence[float | None]) -> int | None:
    """Return the position of the highest score; None: there is none."""
    known = [place for place, score in enumerate(scores) if score is not None]
    return max(known, key=lambda place: float(scores[place] or 0.0)) if known else None


def _released(
    winner: Winner,
    event: RepeatAndSelectEvent,
    directory: RunDirectory,
    store: DatasetStore,
    ledger: Ledger,
    entry: str,
    sign_key: Path | None,
) -> Selected:
    """Write what the winner released, its certificate and its reports."""
    config = parse_config(winner.config, source="the winner")
    directory.keep_config(config)
    _write_files(winner.files, config, directory, store)
    publisher = publisher_of(config, store, directory)
    certificate = build_certificate(
        method=config.method,
        stages=[_stage(config, event, store)],
        spare_rounds=0,
        noise_source=(SecureNoise.name, SecureNoise.certifiable, SecureNoise.assumptions),
        ledger_entries=[entry],
        outputs=publisher.outputs(),
        versions=versions_of(config.method),
    )
    check_charged(certificate, ledger, publisher.name)
    if sign_key is not None:
        certificate = sign_certificate(certificate, sign_key)
    write_atomically(directory.certificate, certificate.to_json())
    ledger.certify(entry, certificate.digest)
    publisher.attach(certificate)
    keep_trials(winner.trials, directory, may_leave=True)
    shown = {"score": winner.score, "config": dict(winner.config)}
    write_atomically(directory.path / RESULT, json.dumps(shown, indent=1) + "\n")
    write_reports(config, store, directory, certificate, winner.trials, ledger=ledger)
    return Selected(
        config=config,
        score=winner.score,
        certificate=certificate,
        epsilon=float(certificate.epsilon or 0.0),
        released=publisher.name,
    )


def _stage(config: RunConfig, event: RepeatAndSelectEvent, store: DatasetStore) -> Stage:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the plan warned
        plan = plan_run(config, store)
    return Stage(
        name=ENTRY,
        dataset=config.data.sensitive,
        unit=config.data.unit,
        relation=Relation(config.privacy.relation),
        units=plan.units.value,
        units_source=plan.units.source,
        accountant="rdp",
        delta=config.privacy.delta,
        clip_norm=plan.clip_norm,
        assumptions=(*plan.assumptions, HIDDEN_COUNT),
        events=(event,),
    )


def _write_files(
    files: Mapping[str, bytes], config: RunConfig, directory: RunDirectory, store: DatasetStore
) -> None:
    """Write a dataset into the store, or files into the run's folder."""
    if not isinstance(config.output, OutputConfig):
        for name, content in files.items():
            write_atomically(directory.path / name, content)
        return
    with new_dataset(store.root, config.output.dataset, may_leave=False) as folder:
        for name, content in files.items():
            path = folder / Path(name).name
            with storage_errors(f"write {path}"):
                path.write_bytes(
                    _own_metadata(content, directory) if path.name == METADATA else content
                )


def _own_metadata(content: bytes, directory: RunDirectory) -> bytes:
    """Return a dataset's metadata as of this run, without the certificate of the trial."""
    values = json.loads(content)
    values.pop(CERTIFICATE_KEY, None)
    return json.dumps({**values, RUN_KEY: directory.run_id}).encode()
