"""The one program: checks, the method, the certificate, the release, the reports.

Whatever trains or draws figures is imported once a run gets there: most refusals need none of it.
"""

import importlib.metadata
import platform
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    UnsafeError,
    UselessError,
    VerificationError,
)
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.files import owned_folder, storage_errors, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.spaces import same_form
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.accounts import check_inputs, inspect_inputs
from distributed_privrl.experiments.clearance import cleared
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.kinship import with_declarations
from distributed_privrl.experiments.publishing import (
    Publisher,
    dataset_publisher,
    publisher_of,
)
from distributed_privrl.experiments.registry import check_gpus, method_named, package_of
from distributed_privrl.experiments.trainers import check_agents
from distributed_privrl.privacy.certificate import (
    Certificate,
    Stage,
    build_certificate,
    sign_certificate,
    stating_nothing,
    with_outputs,
)
from distributed_privrl.privacy.events import Event, ParallelEvent, RepeatAndSelectEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, stated_answer
from distributed_privrl.privacy.reservations import check_charged
from distributed_privrl.privacy.verification import read_certificate, verify_outputs
from distributed_privrl.stages.context import MethodResult, RunContext

if TYPE_CHECKING:
    from distributed_privrl.evaluation.trainer import Trainer
    from distributed_privrl.experiments.agents import Trials

VERSIONED = ("distributed_privrl", "dp-accounting", "numpy", "torch", "opendp", "cryptography")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a run leaves behind.

    Args:
        certificate: what the release costs.
        directory: the run's folder.
        released: id of the synthetic dataset, or the policy's file.
        trials: agents trained on it.
    """

    certificate: Certificate
    directory: RunDirectory
    released: str
    trials: "Trials"


def run(
    config: RunConfig,
    executor: Executor,
    *,
    out: Path,
    ledger_url: str | None = None,
    store: DatasetStore | None = None,
    resume: bool = False,
    progress: Progress = silent,
    sign_key: Path | None = None,
    more_trainers: "Mapping[str, Trainer] | None" = None,
    insecure_key: int | None = None,
    anyway: bool = False,
    reports: bool = True,
    stand_in: bool = False,
) -> RunResult:
    """Turn a sensitive dataset into a private one, or into a policy, with a certificate.

    Args:
        config: of any method.
        executor: where workers run; stays open.
        out: the run's folder.
        ledger_url: the ledger; None: ``PRIVRL_LEDGER`` or the user's data folder.
        store: datasets; None: Minari's folder.
        resume: continue the run in ``out``; agents of its evaluation that failed are trained again.
        progress: told where long work is.
        sign_key: PEM file of an Ed25519 key that signs the certificate.
        more_trainers: trainers for ``evaluation.trainers`` beside the plain loops, by name.
        insecure_key: seeds private randomness in tests; the certificate is then invalid.
        anyway: run what would be useless, too (`stages.verdict`).
        reports: write them; ``privrl report`` does it later where they are left out.
        stand_in: public rows lie under the sensitive id, and the ledger is nobody's: what is made
            of them is public, and its certificate states nothing.

    Raises:
        UselessError: public facts tell that nothing would be left but noise; nothing has been
            drawn, but a count of units where that was needed to tell.
        ConfigError: configuration or datasets are wrong; nothing has been drawn.
        BudgetError: no budget, or not enough of it; nothing has been drawn.
        UnsafeError: public and sensitive data overlap, units do not fit, or a dataset is not what
            the configuration calls it (`check_inputs`, `inspect_inputs`); nothing has been drawn.
        StorageError: the disk is full (resume once there is space), the store cannot be written to,
            or another process works in ``out``.

    Privacy: as the method states it; the fingerprint stays in the ledger. The refusal on overlap is
    a message to the operator alone and tells that a public row is a sensitive one.
    """
    store, out = store or DatasetStore(), out.absolute()  # other nodes have another folder
    if resume and RunDirectory(out).config_path.exists():
        config = RunDirectory(out).resumed(config)
    check_gpus(config)
    check_datasets(config, store, may_exist=resume)
    check_agents(config, store, more_trainers=more_trainers)
    fresh = not RunDirectory(out).config_path.exists()
    source = RunContext.noise_class(insecure_key)
    with closing(Ledger(ledger_url)) as ledger:
        ledger.accounts()  # a ledger that cannot be read is found before a folder is made
        with owned_folder(out):
            directory = RunDirectory.create(out, config, resume=resume, noise_source=source.name)
            store.clear()
            try:
                publisher = publisher_of(config, store, directory, public=stand_in)
                publisher.check_free()
                check_inputs(config, store, ledger)
                for dataset in config.releases:
                    cleared(store, dataset, reader=config.method, ledger=ledger)
                _check_known(config, directory, ledger)
                context = RunContext(
                    run_id=directory.run_id,
                    folder=_working_folder(config, directory),
                    executor=executor,
                    store=store,
                    ledger=ledger,
                    fingerprint=inspect_inputs(config, store, ledger, progress=progress).identity,
                    progress=progress,
                    insecure_key=insecure_key,
                    make_private=directory.make_private,
                    anyway=anyway,
                )
                result = method_named(config.method).run(config, context)
                certificate = _release(config, context, result, directory, publisher, sign_key)
                _release_beside(config, context, result, directory, sign_key, public=stand_in)
                _log(directory, certificate, result.metrics)
                from distributed_privrl.experiments.judging import judged

                trials = judged(
                    config,
                    store,
                    directory,
                    certificate,
                    executor,
                    ledger=ledger,
                    progress=progress,
                    more_trainers=more_trainers,
                    reports=reports,
                )
                directory.clear()  # of workers that died while the run went on
            except (ConfigError, BudgetError, UnsafeError, UselessError) as error:
                charged, certified = _charged(directory, ledger), directory.certificate.exists()
                if charged and not certified:
                    error.add_note(_charged_note(directory.run_id, final=error.final))
                if fresh and not charged and not certified:
                    directory.discard()  # refused before anything was charged or made
                raise
    return RunResult(
        certificate=certificate,
        directory=directory,
        released=publisher.name,
        trials=trials,
    )


def _charged_note(run_id: str, *, final: bool) -> str:
    if final:
        return (
            f"({run_id} stays charged and cannot go on: `privrl ledger settle {run_id}` closes it)"
        )
    return (
        f"({run_id} stays charged: --resume goes on once that is mended,"
        f" `privrl ledger settle {run_id}` gives it up)"
    )


def _charged(directory: RunDirectory, ledger: Ledger) -> bool:
    return any(entry.id.startswith(directory.run_id) for entry in ledger.entries())


def _check_known(config: RunConfig, directory: RunDirectory, ledger: Ledger) -> None:
    """Check that the ledger knows a private run that has written something: it was charged then.

    Raises:
        ConfigError: it does not; charged anew, what lies in the folder would be paid for twice.
    """
    written = set(directory.checkpoint.iterdir()) - {directory.facts_path}
    if config.privacy.epsilon is not None and written and not _charged(directory, ledger):
        raise ConfigError(
            f"the ledger does not know {directory.run_id}, which was charged before: give --ledger"
            " URL of the ledger that it was charged to"
        )


def _working_folder(config: RunConfig, directory: RunDirectory) -> Path:
    """Return where parameters and chunks go, made: of a run without privacy, for its owner."""
    private = config.privacy.epsilon is not None
    folder = directory.working(private=private)
    if not private:
        directory.make_private()
        with storage_errors(f"make {folder}"):
            folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def check_datasets(config: RunConfig, store: DatasetStore, *, may_exist: bool = False) -> None:
    """Check that the inputs exist and the output does not, before anything is made.

    Raises:
        ConfigError: an input is missing or does not know the unit, the method learns what follows a
            row and nothing does, public rows are of other spaces or kinds than the sensitive ones,
            or nothing follows the rows of one side alone, the output id exists, or a dataset is
            named twice.
    """
    named = (config.data.sensitive, *config.data.public, *config.releases)
    released = config.output.datasets
    if len({*named, *released}) < len(named) + len(released):
        raise ConfigError(
            "data.sensitive, data.public, model.release and output.dataset must all be different"
            " datasets, got"
            f" {', '.join((*named, *released))}"
        )
    infos = [store.info(dataset) for dataset in named]
    alone = [info.id for info in infos if not info.has_successors]
    if alone and method_named(config.method).declare(config).needs_successors:
        raise ConfigError(
            f"nothing follows the rows of {alone[0]} (next_observation: none), and"
            f" {config.method} learns what does: take method marginals, or import the table with a"
            " trajectory column or next observations"
        )
    lacking = [
        (info.id, part)
        for info in infos
        for part, has in (("action", info.has_action), ("reward", info.has_reward))
        if not has
    ]
    if lacking and method_named(config.method).declare(config).needs_decisions:
        dataset, part = lacking[0]
        raise ConfigError(
            f"{dataset} has no {part} ({part}: none), and {config.method} learns from it: take a"
            " method for tables, such as marginals, or name the columns in the schema"
        )
    store.check_unit(config.data.sensitive, config.data.unit)
    for public in infos[1:]:
        if public.has_successors != infos[0].has_successors:
            raise ConfigError(
                f"something follows the rows of {public.id} or of {infos[0].id}, and nothing those"
                " of the other (next_observation: none): import both alike"
            )
        for name in ("observation_space", "action_space"):
            mine, theirs = getattr(infos[0], name), getattr(public, name)
            if not same_form(mine, theirs):
                raise ConfigError(
                    f"{public.id} has {name.replace('_', ' ')} {theirs}, {infos[0].id} has {mine}:"
                    " public data must have the sensitive data's columns and categories; import"
                    " both with the same spaces"
                )
        one, other = infos[0].declared, public.declared
        if one is not None and other is not None and not one.same_labels(other):
            raise ConfigError(
                f"{public.id} and {infos[0].id} declare other categories, dates or flags in some"
                " column, or in another order: import both with the same kinds"
            )
    if not may_exist and set(released) & set(store.ids()):
        raise ConfigError(
            f"output.dataset={released[0]} exists: choose another id or a higher version"
        )


def _release(
    config: RunConfig,
    context: RunContext,
    result: MethodResult,
    directory: RunDirectory,
    publisher: Publisher,
    sign_key: Path | None,
) -> Certificate:
    """Write the release and its certificate; a certificate that exists is checked, not replaced.

    Raises:
        VerificationError: the released files are no longer those that were certified.
    """
    context.progress("writing release", 0, 1)
    if directory.certificate.exists():
        certificate = read_certificate(directory.certificate)
        if certificate.outputs != publisher.outputs():
            raise VerificationError(
                f"the files of {publisher.name} are not those that {directory.certificate}"
                " certifies: somebody changed them; do not release them"
            )
    else:
        publisher.write(result)
        certificate = _certified(config, context, result, publisher, sign_key)
        write_atomically(directory.certificate, certificate.to_json())
    _state(context, certificate)
    publisher.attach(certificate)
    context.progress("writing release", 1, 1)
    return certificate


def _release_beside(
    config: RunConfig,
    context: RunContext,
    result: MethodResult,
    directory: RunDirectory,
    sign_key: Path | None,
    *,
    public: bool,
) -> None:
    """Write the datasets beside a policy, each with a certificate of what was charged for it alone.

    The ledger ties each entry to them, and to the run's certificate, which states more.

    Raises:
        VerificationError: a dataset that was written before is no longer what was certified.
    """
    for one in result.beside:
        publisher = dataset_publisher(config, context.store, directory, one.dataset, public=public)
        own = replace(
            result,
            stages=one.stages,
            spare_rounds=0,
            ledger_entries=one.ledger_entries,
            release=one.trajectories,
            beside=(),
        )
        if one.dataset in context.store.ids():
            written = context.store.info(one.dataset).certificate
            if written.get("status") == "valid":
                known = verify_outputs(written, publisher.outputs(), source=one.dataset)
                _state(context, known, output=one.dataset)
                continue
        publisher.write(own)
        certificate = _certified(config, context, own, publisher, sign_key)
        publisher.attach(certificate)
        if certificate.status == "valid":  # of test noise: written anew by each resume
            _state(context, certificate, output=one.dataset)


def _state(context: RunContext, certificate: Certificate, *, output: str | None = None) -> None:
    """Tell the ledger which certificate states its entries: the run's, or that of an output."""
    for entry in certificate.ledger_entries:
        context.ledger.certify(entry, certificate.digest, output=output)


def _certified(
    config: RunConfig,
    context: RunContext,
    result: MethodResult,
    publisher: Publisher,
    sign_key: Path | None,
) -> Certificate:
    """Return the certificate of a release that was written, with what the ledger reserved for it.

    Of what is public it states nothing: nobody's account paid.

    Raises:
        VerificationError: the method states other events than the ledger reserved.
    """
    certificate = build_certificate(
        method=config.method,
        stages=with_declarations(
            result.stages, context.ledger, (config.data.sensitive, *config.data.public)
        ),
        spare_rounds=result.spare_rounds,
        noise_source=context.noise_facts if result.stages else None,
        ledger_entries=result.ledger_entries,
        outputs=(),
        versions=versions_of(config.method),
    )
    check_charged(certificate, context.ledger, publisher.name)
    if publisher.public:
        certificate = stating_nothing(certificate)
    certificate = with_outputs(certificate, publisher.outputs())
    return certificate if sign_key is None else sign_certificate(certificate, sign_key)


def versions_of(method: str) -> dict[str, str]:
    """Return the versions that a certificate states, of the method's package, too."""
    versions = {name: importlib.metadata.version(name) for name in VERSIONED}
    offered = package_of(method)
    plug_in = {} if offered is None else dict([offered])
    return {"python": platform.python_version(), **plug_in, **versions}


def _times(event: Event) -> int:
    """Return how often an event happened; of parallel branches the longest counts."""
    if isinstance(event, ParallelEvent):
        return max(sum(_times(inner) for inner in branch) for branch in event.branches)
    return 1 if isinstance(event, RepeatAndSelectEvent) else event.count


def _units(certificate: Certificate, stage: Stage) -> PublicValue | ReleasedValue:
    """Return the number of units: declared, or counted with noise by the first entry."""
    if stage.units_source != "dp":
        return PublicValue(stage.units)
    stated = stated_answer(certificate).paid_by(certificate.ledger_entries[0])
    return stated.then(lambda found: found.stages).map(
        lambda stages: next(one.units for one in stages if one.name == stage.name)
    )


def _log(
    directory: RunDirectory,
    certificate: Certificate,
    further: Sequence[Mapping[str, PublicValue | ReleasedValue]],
) -> None:
    if directory.metrics.exists():
        return  # a resumed run that had finished
    if not certificate.stages:
        return
    stages = [
        {
            "stage": PublicValue(stage.name),
            "delta": PublicValue(stage.delta),
            "units": _units(certificate, stage),
            "reserved": PublicValue(sum(_times(event) for event in stage.events)),
        }
        for stage in certificate.stages
    ]
    directory.write_metrics([*stages, *further])
