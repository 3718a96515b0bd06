"""``sweep``: many runs of one configuration, and the choice among them."""

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributed_privrl.cli.failures import INTERRUPTED_LINE, InterruptedRunError
from distributed_privrl.cli.helptext import LedgerUrl, Overrides, examples
from distributed_privrl.cli.resuming import Resume, ResumeOrBegin, ResumingCommand
from distributed_privrl.cli.text import resume_line, show_table, show_values

if TYPE_CHECKING:
    from distributed_privrl.experiments.sweeps.config import Sweep
    from distributed_privrl.experiments.sweeps.costs import Pilot, SweepCost

_SHOWN = 20


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "sweep",
        epilog=examples(
            "privrl sweep tune_configs/sweeps/smoke.yaml --dry-run",
            "privrl sweep tune_configs/sweeps/smoke.yaml --out runs/sweep",
            "privrl sweep tune_configs/sweeps/smoke.yaml --out runs/sweep --resume",
        ),
        cls=ResumingCommand,
    )(sweep)


def sweep(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="SWEEP.yaml", help="a run's configuration with `search` and `selection`"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="the sweep's folder; not with --dry-run")
    ] = None,
    overrides: Overrides = None,
    ledger: LedgerUrl = None,
    resume: Resume = False,
    resume_or_begin: ResumeOrBegin = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="show what it costs, and start nothing")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="with --dry-run: write JSON")] = False,
    anyway: Annotated[
        bool, typer.Option("--anyway", help="run what plans call hopeless, too")
    ] = False,
) -> None:
    """Run a configuration with many values of its keys, side by side on Ray Tune.

    `selection.pays` says who pays for the choice. public: a dataset declared public stands in, and
    the sensitive one is not opened. compose: every trial is charged and released. private: a
    hidden number of trials is run, the best one alone is released, and one charge is made before
    the start. The best configuration is written to chosen.yaml, ready for `privrl run`.
    """
    from distributed_privrl.cli.execution import check_job, rows_kept_from_log
    from distributed_privrl.core.errors import ConfigError
    from distributed_privrl.core.files import owned_folder
    from distributed_privrl.experiments.sweeps.config import PrivateSelection, load_sweep
    from distributed_privrl.experiments.sweeps.jobs import SweepDirectory

    asked = load_sweep(file, overrides or [])
    if dry_run:
        show_cost(asked, as_json=as_json)
        return
    if out is None:
        raise ConfigError("--out is missing: name a folder for the sweep, or give --dry-run")
    if as_json:
        raise ConfigError("--json goes with --dry-run: a sweep writes results.json into --out")
    check_job(out, ledger)
    resume = resume or (resume_or_begin and SweepDirectory(out).file.exists())
    begin = _select if isinstance(asked.selection, PrivateSelection) else _sweep
    try:
        with rows_kept_from_log(out), owned_folder(out):
            begin(asked, out, ledger, resume=resume, anyway=anyway)
    except KeyboardInterrupt:
        if isinstance(asked.selection, PrivateSelection):
            raise InterruptedRunError(
                "interrupted: what was charged is spent, and the selection does not go on; start"
                " a new one in another --out"
            ) from None
        if not SweepDirectory(out).file.exists():
            raise InterruptedRunError(INTERRUPTED_LINE) from None
        line = resume_line(file, out, overrides or [], ledger, verb="sweep")
        raise InterruptedRunError(f"interrupted: go on with `{line}`") from None


def show_cost(asked: "Sweep", *, as_json: bool, pilot: "Pilot | None" = None) -> None:
    """Show what a sweep costs, in epsilon, CPU minutes and disk; opens no data.

    Args:
        asked: the sweep.
        as_json: write JSON.
        pilot: what a trial takes; None: it is estimated.
    """
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.sweeps.costs import cost_of
    from distributed_privrl.privacy.accounting import coarse_figures

    with coarse_figures():
        cost = cost_of(asked, DatasetStore(), pilot)
    if as_json:
        typer.echo(json.dumps(cost.facts(), indent=2))
        return
    _show_trials(cost)
    show_values(_readable(cost))


def piloted(asked: "Sweep", rows: str | None) -> "Pilot":
    """Measure what a trial of a sweep takes, by short ones on public rows.

    Args:
        asked: the sweep.
        rows: id of the rows; None: what stands in.
    """
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.sweeps.pilot import measured_pilot

    with shown_progress() as progress:
        return measured_pilot(asked, DatasetStore(), rows=rows, progress=progress)


def _show_trials(cost: "SweepCost") -> None:
    if not cost.trials:
        return
    rows = [
        (
            *map(str, one.values.values()),
            "-" if one.epsilon is None else f"{one.epsilon:g}",
            "-" if one.minutes is None else f"{one.minutes:.2g}",
            one.verdict or "-",
        )
        for one in cost.trials[:_SHOWN]
    ]
    show_table((*cost.trials[0].values, "epsilon of it", "minutes", "verdict"), rows)
    if (more := len(cost.trials) - _SHOWN) > 0:
        typer.echo(f"and {more} more: --json lists them")
    typer.echo("")


def _readable(cost: "SweepCost") -> dict[str, str]:
    paid = {
        "public": "nothing: public rows stand in, and the sensitive dataset is not opened",
        "compose": f"epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g}: every trial is charged and"
        " may be released",
        "private": f"epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g}, charged once, before the"
        " start",
    }
    lines = {
        "trials": f"{cost.expected:g}" + (" on average" if cost.pays == "private" else ""),
        "pays": f"{cost.pays}: {paid[cost.pays]}",
    }
    if cost.minutes is not None:
        lines["time"] = f"some {cost.minutes:.2g} CPU minutes of trials, {_measured(cost)}"
    lines["disk"] = f"some {cost.gigabytes:.2g} GB"
    for number, note in enumerate(cost.notes):
        lines["note" if number == 0 else f"note {number + 1}"] = note
    if cost.budget:
        lines["budget"] = cost.budget
    return lines


def _measured(cost: "SweepCost") -> str:
    """Say how minutes are known."""
    if cost.pilot is None:
        return "agents left out; `privrl plan --sweep FILE --pilot` measures both"
    return f"agents included, by a pilot of {cost.pilot.spent:.2g} CPU seconds on {cost.pilot.rows}"


def _sweep(asked: "Sweep", out: Path, ledger: str | None, *, resume: bool, anyway: bool) -> None:
    from distributed_privrl.cli.execution import termination_as_interrupt
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.sweeps.config import PrivateSelection, PublicSelection
    from distributed_privrl.experiments.sweeps.jobs import SweepDirectory, results_of
    from distributed_privrl.experiments.sweeps.outcome import CHOSEN, write_outcome
    from distributed_privrl.experiments.sweeps.preparing import prepared_jobs
    from distributed_privrl.experiments.sweeps.report import write_sweep_report

    directory, selection = SweepDirectory(out), asked.selection
    assert not isinstance(selection, PrivateSelection)
    public = isinstance(selection, PublicSelection)
    jobs = prepared_jobs(
        asked, directory, store=DatasetStore(), ledger=ledger, resume=resume, anyway=anyway
    )
    from distributed_privrl.runtime.tuning import run_jobs

    with termination_as_interrupt():
        errors = run_jobs(
            jobs,
            storage=directory.scheduler(public=public),
            ledger=ledger,
            public=public,
            concurrent=selection.concurrent,
            retries=selection.retries,
            trackers=selection.trackers if isinstance(selection, PublicSelection) else (),
        )
    results = results_of(jobs)
    best = write_outcome(asked, results, out)
    report = write_sweep_report(asked, results, directory)
    shown = {"trials": f"{len(results)} of {len(jobs)} have ended", "report": str(report)}
    if best is not None:
        said = ", ".join(f"{path}={value}" for path, value in best.values.items())
        shown |= {"best": f"{best.mean:.4g} with {said}", "configuration": str(out / CHOSEN)}
        if public:
            shown["next"] = f"privrl run {out / CHOSEN} --out DIR"
    show_values(shown)
    for one in results:
        if one.failed:
            typer.echo(f"warning: {one.name} failed: {one.failed}", err=True)
    if errors:
        raise errors[0]


def _select(asked: "Sweep", out: Path, ledger: str | None, *, resume: bool, anyway: bool) -> None:
    from distributed_privrl.cli.execution import (
        deferred_executor,
        rllib_trainers,
        termination_as_interrupt,
    )
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.core.errors import UnsafeError
    from distributed_privrl.experiments.sweeps.config import PrivateSelection
    from distributed_privrl.experiments.sweeps.selection import select

    selection = asked.selection
    assert isinstance(selection, PrivateSelection)
    if resume:
        raise UnsafeError(
            "a private selection does not resume: what its trials did is kept nowhere, and its"
            " charge stays; start a new one in another --out"
        )
    runtime = asked.base.runtime.model_copy(update={"workers": selection.actors})
    with contextlib.ExitStack() as stack:
        stack.enter_context(termination_as_interrupt())
        executor = stack.enter_context(contextlib.closing(deferred_executor(runtime)))
        progress = stack.enter_context(shown_progress())
        found = select(
            asked,
            executor,
            out=out,
            ledger_url=ledger,
            progress=progress,
            anyway=anyway,
            more_trainers=rllib_trainers(),
        )
    if found.config is None or found.certificate is None:
        show_values(
            {"released": "nothing: no trial had a score", "charged": f"{found.epsilon:.4f}"}
        )
        return
    values = found.config.model_dump(mode="json")
    searched = {path: str(_at(values, path)) for path in asked.search}
    show_values(
        {
            **searched,
            "score": f"{found.score:.4g}",
            "released": found.released,
            "epsilon": f"{found.epsilon:.4f} (delta {found.certificate.delta:g})",
            "certificate": str(out / "certificate.json"),
            "report": str(out / "report.html"),
        }
    )


def _at(values: object, path: str) -> object:
    for name in path.split("."):
        values = values[name] if isinstance(values, dict) else None
    return values
