"""``demo`` and ``run``: a sensitive dataset to a private one."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributed_privrl.cli.evaluation import warn_of_failures
from distributed_privrl.cli.failures import (
    INTERRUPTED_LINE,
    InterruptedRunError,
    interrupted_anew,
    storage_failure,
)
from distributed_privrl.cli.helptext import LedgerUrl, OutPlace, Overrides, examples
from distributed_privrl.cli.planning import NOT_PRIVATE, summary_line
from distributed_privrl.cli.resuming import Resume, ResumeOrBegin, ResumingCommand
from distributed_privrl.cli.text import resume_line, show_values
from distributed_privrl.core.errors import FolderInUseError, StorageError

if TYPE_CHECKING:
    from distributed_privrl.core.config import RunConfig
    from distributed_privrl.experiments.run import RunResult


def add_demo(app: typer.Typer) -> None:
    """Add ``demo``."""
    app.command("demo", epilog=examples("privrl demo", "privrl demo --quick --out runs/quick"))(
        demo
    )


def add_run(app: typer.Typer) -> None:
    """Add ``run``."""
    app.command(
        "run",
        epilog=examples(
            "privrl run stays.yaml --out runs/stays",
            "privrl run stays.yaml --out runs/stays --resume",
            "privrl run stays.yaml --out s3://clinic/runs/stays --resume=auto",
            "privrl run stays.yaml --out runs/tight -o privacy.epsilon=1"
            " -o output.dataset=clinic/tight-v0",
        ),
        cls=ResumingCommand,
    )(run)


def demo(
    method: Annotated[str, typer.Option(metavar="M", help="name of the method")] = "privorl_ar",
    out: Annotated[Path, typer.Option(metavar="DIR", help="a new folder")] = Path("runs/demo"),
    quick: Annotated[
        bool, typer.Option("--quick", help="the path alone: its figures say nothing")
    ] = False,
) -> None:
    """Show the whole path on a small problem, without any download.

    It collects a sensitive dataset (and a public one), sets a budget, runs, tries what it made (an
    agent trained on the private dataset, or the private policy), and writes certificate and report.
    Everything lies in --out.
    """
    from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.experiments.demo import run_demo

    try:
        with termination_as_interrupt(), shown_progress() as progress:
            result = run_demo(
                out,
                method=method,
                quick=quick,
                progress=progress,
                executor_factory=lambda config: start_executor(config.runtime),
            )
    except KeyboardInterrupt:
        raise interrupted_anew(out) from None
    show_values(result.summary)
    typer.echo("\n".join(["", "to go on with what it made:", *result.next_lines]))


def run(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="the run's configuration")],
    out: OutPlace,
    overrides: Overrides = None,
    ledger: LedgerUrl = None,
    resume: Resume = False,
    resume_or_begin: ResumeOrBegin = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="run what its plan calls hopeless, too")
    ] = False,
    sign: Annotated[
        Path | None,
        typer.Option("--sign", metavar="KEY.pem", help="sign the certificate with an Ed25519 key"),
    ] = None,
) -> None:
    """Make a private dataset or a private policy of a sensitive one, with certificate.

    The ledger refuses before anything is drawn if the dataset has no budget or not enough of it.
    After a crash or an interrupt, --resume goes on; rounds that were drawn are never drawn again,
    and agents of the evaluation that failed are trained again. A run of which public facts tell
    that nothing but noise would be left is refused with exit code 8, unless --anyway is given.
    --out may be a URI: the run then goes on from any machine.
    """
    from distributed_privrl.cli.execution import (
        check_job,
        rows_kept_from_log,
        termination_as_interrupt,
    )
    from distributed_privrl.core.places import place_of
    from distributed_privrl.data.stored_folders import opened_folder
    from distributed_privrl.experiments.directory import RunDirectory
    from distributed_privrl.experiments.registry import load_config

    loaded, place = load_config(config, overrides or []), place_of("--out", out)
    check_job(place, ledger)
    with (
        termination_as_interrupt(),
        opened_folder(place) as folder,
        _going_on(folder, resume_line(config, place, overrides or [], ledger)),
        rows_kept_from_log(folder),
    ):
        resume = resume or (resume_or_begin and RunDirectory(folder).config_path.exists())
        result = _run(loaded, folder, ledger, resume=resume, sign=sign, anyway=anyway)
        _tell(loaded, result)


@contextlib.contextmanager
def _going_on(folder: Path, line: str) -> Iterator[None]:
    """Say how to go on with a run that has begun when it is interrupted, or cannot be written."""
    from distributed_privrl.experiments.directory import RunDirectory

    try:
        yield
    except KeyboardInterrupt:
        if not RunDirectory(folder).config_path.exists():
            raise InterruptedRunError(INTERRUPTED_LINE) from None
        raise InterruptedRunError(
            f"interrupted: go on with `{line}`; it needs no new budget"
        ) from None
    except (StorageError, OSError) as error:
        failure = storage_failure(error) if isinstance(error, OSError) else error
        if failure is None or isinstance(failure, FolderInUseError):
            raise
        if RunDirectory(folder).config_path.exists():
            failure.add_note(f"(then go on with `{line}`; it needs no new budget)")
        raise failure from error.__cause__ or error


def _tell(loaded: "RunConfig", result: "RunResult") -> None:
    """Say what a run has made, and what to know of it."""
    from distributed_privrl.cli.execution import tell_certificate
    from distributed_privrl.experiments.agents import reasons

    if result.certificate.status == "valid":  # else their errors are as private as the rows
        warn_of_failures(reasons(result.trials))
        _warn_of_release(loaded, result)
    show_values(_outcome(loaded, result))
    tell_certificate(result.directory.certificate)


def _run(
    config: "RunConfig",
    out: Path,
    ledger: str | None,
    *,
    resume: bool,
    sign: Path | None,
    anyway: bool,
) -> "RunResult":
    from distributed_privrl.cli.execution import deferred_executor, metered, rllib_trainers
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.directory import RunDirectory
    from distributed_privrl.experiments.registry import check_gpus
    from distributed_privrl.experiments.run import check_datasets
    from distributed_privrl.experiments.run import run as run_experiment

    store, directory = DatasetStore(), RunDirectory(out)
    if resume and directory.config_path.exists():
        config = directory.resumed(config)
    check_gpus(config)
    check_datasets(config, store, may_exist=resume)
    _announce(config)
    executor = deferred_executor(config.runtime)
    with contextlib.closing(executor), shown_progress() as progress:
        return run_experiment(
            config,
            executor,
            out=out,
            ledger_url=ledger,
            store=store,
            resume=resume,
            progress=metered(progress, config.runtime),
            sign_key=sign,
            more_trainers=rllib_trainers(),
            anyway=anyway,
        )


def _warn_of_release(config: "RunConfig", result: "RunResult") -> None:
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.trajectory_reports import release_warnings

    if result.released in config.output.datasets:
        for warning in release_warnings(DatasetStore().info(result.released)):
            typer.echo(f"warning: {warning}", err=True)


def _announce(config: "RunConfig") -> None:
    from distributed_privrl.core.config import NoisyCount
    from distributed_privrl.experiments.registry import plan_run

    counted = isinstance(config.data.units, NoisyCount)
    planned = None if counted else plan_run(config)
    typer.echo(summary_line(config, planned), err=True)
    if planned is not None and planned.verdict is not None:
        typer.echo(f"verdict: {planned.verdict}", err=True)
    if config.privacy.epsilon is None:
        typer.echo(NOT_PRIVATE, err=True)


def _outcome(config: "RunConfig", result: "RunResult") -> dict[str, str]:
    """Return what a run has made.

    Privacy: the path of the private report stands there whatever it holds.
    """
    from distributed_privrl.core.config import OutputConfig
    from distributed_privrl.experiments.registry import method_named

    certificate, directory = result.certificate, result.directory
    stages = certificate.stages
    compared = method_named(config.method).inspection.real_report is not None
    guarantee, report = {"guarantee": "NONE: this run was not private"}, directory.private_report
    if stages:
        report = directory.report
        guarantee = {
            "epsilon": f"{certificate.epsilon:.4f}",
            "delta": f"{certificate.delta:g}",
            "unit": ", ".join(dict.fromkeys(stage.unit for stage in stages)),
            "relation": ", ".join(dict.fromkeys(stage.relation for stage in stages)),
        }
    return {
        "released": result.released,
        **guarantee,
        "certificate": f"{directory.certificate} ({certificate.status})",
        "report": str(report),
        **(
            {"notes": f"{directory.private_report} (yours alone: look there before you release)"}
            if stages and (isinstance(config.output, OutputConfig) or compared)
            else {}
        ),
    }
