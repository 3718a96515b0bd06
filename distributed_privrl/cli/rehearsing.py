"""``rehearse``: what would survive a run's noise, on rows that stand in for the sensitive ones."""

import contextlib
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from distributed_privrl.cli.failures import interrupted_anew
from distributed_privrl.cli.helptext import Overrides, examples


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "rehearse",
        epilog=examples(
            "privrl rehearse stays.yaml",
            "privrl rehearse stays.yaml --out runs/rehearsal -o privacy.epsilon=2",
            "privrl rehearse stays.yaml --rows open/stays-v0",
        ),
    )(rehearse)


def rehearse(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="the run's configuration")],
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="ID", help="a dataset declared public that stands in (default: invented rows)"
        ),
    ] = None,
    units: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="units to expect, where a run counts them"),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="a new folder for rehearsal.txt and rehearsal.json"),
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Run on rows that stand in, and show what survives the noise; spends no budget.

    As many units as the configuration declares get invented rows within the declared spaces and
    bounds, whose columns go together strongly, middling and weakly; or --rows stand in. They go
    through the very run that the configuration describes, with a ledger that is thrown away. It
    says down to which strength relations survive: weaker ones of yours will not. No row of the
    sensitive dataset is read. It takes about as long as the run.
    """
    from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.core.errors import ConfigError
    from distributed_privrl.core.files import make_writable
    from distributed_privrl.experiments.directory import holds_something
    from distributed_privrl.experiments.registry import load_config
    from distributed_privrl.experiments.rehearsal import rehearse as run_rehearsal
    from distributed_privrl.experiments.rehearsal_report import write_rehearsal

    loaded = load_config(config, overrides or [])
    if out is not None:
        if holds_something(out):
            raise ConfigError(f"{out} is not empty: choose another --out, or remove it")
        make_writable(out)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(termination_as_interrupt())
            work = stack.enter_context(tempfile.TemporaryDirectory(prefix="rehearsal-", dir=out))
            executor = stack.enter_context(contextlib.closing(start_executor(loaded.runtime)))
            progress = stack.enter_context(shown_progress())
            found = run_rehearsal(
                loaded, executor, work=Path(work), rows=rows, units=units, progress=progress
            )
    except KeyboardInterrupt:
        raise interrupted_anew(out or config) from None
    typer.echo(found.text(), nl=False)
    if out is not None:
        write_rehearsal(found, out)
