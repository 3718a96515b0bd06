"""What leaves of a private selection: the winner's release, its certificate and its reports."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.data.metadata import FILE_NAME as METADATA
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.agents import keep_trials
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.kinship import with_declarations
from distributed_privrl.experiments.publishing import RUN_KEY, publisher_of
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.reports import write_reports
from distributed_privrl.experiments.run import versions_of
from distributed_privrl.experiments.sweeps.pool import Winner
from distributed_privrl.experiments.trials import content_of
from distributed_privrl.privacy.certificate import Certificate, Stage, build_certificate
from distributed_privrl.privacy.events import RepeatAndSelectEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import stated_answer
from distributed_privrl.privacy.noise import SecureNoise
from distributed_privrl.privacy.reservations import check_charged
from distributed_privrl.privacy.units import Relation

STAGE = "selection"
HIDDEN_COUNT = "the_number_of_trials_and_the_time_they_took_stay_hidden"


def release_winner(
    winner: Winner,
    event: RepeatAndSelectEvent,
    directory: RunDirectory,
    store: DatasetStore,
    ledger: Ledger,
    *,
    entry: str,
) -> tuple[RunConfig, Certificate, str]:
    """Write what the winner released, as what a run of its configuration would leave.

    Args:
        winner: of the selection.
        event: that was charged.
        directory: of the selection.
        store: datasets.
        ledger: that was charged.
        entry: its entry.

    Returns:
        configuration, certificate, and id of the dataset or path of the policy.

    Raises:
        VerificationError: the ledger reserved something else.
        StorageError: the disk is full.

    Privacy: post-processing of the selection's answer, but for ``private/``, which the reports
    write as those of any run.
    """
    config = parse_config(winner.config, source="the winner")
    shown = {"score": winner.score, "config": dict(winner.config)}
    _write_files(winner.files, config, directory, store)
    write_atomically(directory.selection, json.dumps(shown, indent=1) + "\n")
    directory.keep_config(config)
    publisher = publisher_of(config, store, directory)
    datasets = (config.data.sensitive, *config.data.public)
    certificate = build_certificate(
        method=config.method,
        stages=with_declarations([_stage(config, event, winner.certificate)], ledger, datasets),
        spare_rounds=0,
        noise_source=(SecureNoise.name, SecureNoise.certifiable, SecureNoise.assumptions),
        ledger_entries=[entry],
        outputs=publisher.outputs(),
        versions=versions_of(config.method),
    )
    check_charged(certificate, ledger, publisher.name)
    write_atomically(directory.certificate, certificate.to_json())
    ledger.certify(entry, certificate.digest)
    publisher.attach(certificate)
    score = stated_answer(certificate).map(lambda _: winner.score)
    directory.write_metrics([{"score": score}])
    digest = {"content": content_of(store, publisher.name)} if winner.agents else {}
    agents = [{**one, **digest} for one in winner.agents]  # not of its destroyed trial
    keep_trials(agents, directory, may_leave=True)
    write_reports(config, store, directory, certificate, agents, ledger=ledger)
    _forget_times(directory)
    return config, certificate, publisher.name


def _stage(config: RunConfig, event: RepeatAndSelectEvent, own: Certificate) -> Stage:
    """Return the one stage of the certificate: what its own run assumed, the selection does."""
    assumed = [text for stage in own.stages for text in stage.assumptions]
    norms = {stage.clip_norm for stage in own.stages if stage.clip_norm is not None}
    return Stage(
        name=STAGE,
        dataset=config.data.sensitive,
        unit=config.data.unit,
        relation=Relation(config.privacy.relation),
        units=own.stages[0].units,
        units_source=own.stages[0].units_source,
        accountant="rdp",
        delta=config.privacy.delta,
        clip_norm=norms.pop() if len(norms) == 1 else None,
        assumptions=tuple(dict.fromkeys([*assumed, HIDDEN_COUNT])),
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
    with store.new(config.output.dataset, may_leave=False) as folder:
        for name, content in files.items():
            path = folder / Path(name).name
            own = _own_metadata(content, directory) if path.name == METADATA else content
            with storage_errors(f"write {path}"):
                path.write_bytes(own)


def _forget_times(directory: RunDirectory) -> None:
    """Let all files be of now: when the first was written tells how long the trials took."""
    with storage_errors(f"write to {directory.path}"):
        for path in (*directory.path.rglob("*"), directory.path):
            os.utime(path)


def _own_metadata(content: bytes, directory: RunDirectory) -> bytes:
    """Return a dataset's metadata as of this run, without the certificate of the trial."""
    values: dict[str, Any] = json.loads(content)
    values.pop(CERTIFICATE_KEY, None)
    return json.dumps({**values, RUN_KEY: directory.run_id}).encode()
