"""More rows or trajectories of a finished run's model: post-processing, at no cost in epsilon."""

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.files import remove_folder, storage_errors, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.publishing import dataset_publisher
from distributed_privrl.experiments.registry import load_config, method_named, parse_config
from distributed_privrl.privacy.certificate import Certificate, with_outputs
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.reservations import check_charged
from distributed_privrl.privacy.verification import read_certificate
from distributed_privrl.stages.context import MethodResult, RunContext
from distributed_privrl.stages.run import released_again


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Another sample of a run's model.

    Args:
        dataset: its id.
        certificate: what it cost: what the run had cost already.
        path: of the certificate.
    """

    dataset: str
    certificate: Certificate
    path: Path


def finished_config(run_directory: Path, size: int, dataset: str | None) -> RunConfig:
    """Return the configuration of a finished run, with another output.

    Args:
        run_directory: the ``--out`` of the run.
        size: rows, or trajectories.
        dataset: id of the new dataset; None: the release's name, and ``-more`` after it.

    Raises:
        ConfigError: the folder holds no finished run, the run released a policy or was a private
            selection, or the id is that of a dataset of the run.
        StorageError: another version of this program wrote the run.
    """
    directory = RunDirectory(run_directory)
    if not directory.certificate.exists():
        raise ConfigError(
            f"{run_directory} holds no finished run: give the --out of a privrl run that has ended,"
            " or go on with it by --resume"
        )
    directory.check_format()
    directory.check_ran()
    config = load_config(directory.config_path)
    if not isinstance(config.output, OutputConfig):
        raise ConfigError(
            f"{config.method} releases neither rows nor trajectories: only runs that do have a"
            " model to draw more from"
        )
    if dataset is None:
        name, _, version = config.output.dataset.rpartition("-v")
        dataset = f"{name}-more-v{version}"
    if dataset in (config.data.sensitive, *config.data.public, *config.output.datasets):
        raise ConfigError(f"--dataset {dataset} is a dataset of the run: choose another id")
    values = config.model_dump(mode="json")
    values["output"] |= {"size": size, "dataset": dataset}
    return parse_config(
        {"method": config.method, **values}, source=f"{directory.config_path}, --size, --dataset"
    )


def sample_run(
    run_directory: Path,
    config: RunConfig,
    executor: Executor,
    *,
    store: DatasetStore | None = None,
    ledger_url: str | None = None,
    progress: Progress = silent,
    insecure_key: int | None = None,
) -> Sample:
    """Draw a new dataset from a finished run's model, with a certificate of the same stages.

    Args:
        run_directory: the ``--out`` of the run.
        config: of `finished_config`.
        executor: where samplers run.
        store: datasets; the run's own must still be there, whose spaces are read.
        ledger_url: of the run; it is told of the new certificate.
        progress: told where the work is.
        insecure_key: of a run with test noise.

    Raises:
        ConfigError: the dataset exists, or the ledger does not know what the run released first.
        VerificationError: the run's certificate was changed, or the ledger has other charges.
        StorageError: a checkpoint cannot be read, or the dataset not written.

    Privacy: post-processing of what the run released; no event, nothing is drawn with noise or
    charged. The rows come from a public stream that the new dataset's id names, so that they are
    others than the run's own. Of sensitive rows it reads none, but for a hash that finds the
    ledger's account where the run had released a count or bounds first.
    """
    store, output = store or DatasetStore(), config.output
    assert isinstance(output, OutputConfig)
    if store.holds(output.dataset):
        raise ConfigError(f"{output.dataset} exists: choose another --dataset or a higher version")
    directory = RunDirectory(run_directory.absolute())
    before = read_certificate(directory.certificate)
    declared = method_named(config.method).declare(config)
    folder = directory.sample(output.dataset)
    with contextlib.closing(Ledger(ledger_url)) as ledger, storage_errors(f"write to {folder}"):
        check_charged(before, ledger, directory.certificate)
        fingerprint = ""
        if declared.charged_before:
            fingerprint = inspect(store, config.data.sensitive, unit=config.data.unit).identity
        remove_folder(folder)  # of a sample that was stopped
        folder.mkdir(parents=True)
        context = RunContext(
            run_id=directory.run_id,
            folder=directory.working(private=config.privacy.epsilon is not None),
            executor=executor,
            store=store,
            ledger=ledger,
            fingerprint=fingerprint,
            progress=progress,
            insecure_key=insecure_key,
            stream=f"sample/{output.dataset}",
            drawn=folder / "chunks",
        )
        release = released_again(
            declared, context, stages=before.stages, entries=before.ledger_entries
        )
        publisher = dataset_publisher(config, store, directory, output.dataset)
        progress("writing sample", 0, 1)
        publisher.write(
            MethodResult(
                stages=before.stages,
                spare_rounds=before.spare_rounds,
                ledger_entries=before.ledger_entries,
                release=release,
            )
        )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        dated = before.model_copy(update={"created": now})
        certificate = with_outputs(dated, publisher.outputs())
        for entry in certificate.ledger_entries:
            ledger.certify(entry, certificate.digest, output=output.dataset)
        publisher.attach(certificate)
        path = folder / directory.certificate.name
        write_atomically(path, certificate.to_json())
        remove_folder(folder / "chunks")
        progress("writing sample", 1, 1)
    return Sample(dataset=output.dataset, certificate=certificate, path=path)
