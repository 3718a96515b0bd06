"""The root of ``privrl``: global options, and one exit for everything that goes wrong."""

import contextlib
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from distributed_privrl.cli import (
    auditing,
    certificate,
    configuration,
    datasets,
    doctor,
    drafting,
    evaluation,
    ledger,
    planning,
    rehearsing,
    running,
    sampling,
    submitting,
    sweeping,
)
from distributed_privrl.cli.failures import INTERRUPTED_LINE, report_failure
from distributed_privrl.cli.helptext import examples
from distributed_privrl.cli.logs import lines_of_errors, warnings_told
from distributed_privrl.core.errors import INTERRUPTED_EXIT_CODE
from distributed_privrl.core.memory import forbid_core_dumps

PACKAGE = str(Path(__file__).parents[1])


class _OneLineGroup(TyperGroup):
    """A command group whose every failure is one line and a documented exit code."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run the command line and exit; ``--debug`` may stand anywhere before ``--``."""
        arguments, debug = _debug_first(sys.argv[1:] if args is None else args)
        forbid_core_dumps()
        with contextlib.ExitStack() as stack:
            stack.enter_context(warnings.catch_warnings())
            warnings.showwarning = _show_warning
            try:
                stack.enter_context(lines_of_errors())
                stack.enter_context(warnings_told())
                code = super().main(
                    arguments,
                    prog_name,
                    complete_var,
                    standalone_mode=False,
                    **{"obj": arguments, **extra},  # for a message that repeats the command
                )
            except (Exception, MemoryError) as error:
                code = report_failure(error, debug=debug)
            else:
                if code == INTERRUPTED_EXIT_CODE:
                    typer.echo(INTERRUPTED_LINE, err=True)
        sys.exit(code if isinstance(code, int) else 0)


def _debug_first(args: Sequence[str]) -> tuple[list[str], bool]:
    """Return the arguments with ``--debug`` moved to the front, and whether it was there."""
    end = args.index("--") if "--" in args else len(args)
    before = [argument for argument in args[:end] if argument != "--debug"]
    debug = len(before) < end
    return [*(["--debug"] if debug else []), *before, *args[end:]], debug


def _show_warning(
    message: Warning | str, category: type[Warning], filename: str, *_: object, **__: object
) -> None:
    """Show the package's own warnings as one line; other libraries' say nothing to a user.

    A RuntimeWarning is numpy's wherever it appears, and whether it does may hang on a single row.
    """
    if filename.startswith(PACKAGE) and not issubclass(category, RuntimeWarning):
        typer.echo(f"warning: {' '.join(str(message).split())}", err=True)


def _show_version(wanted: bool) -> None:
    if wanted:
        import importlib.metadata

        typer.echo(f"privrl {importlib.metadata.version('distributed_privrl')}")
        raise typer.Exit


app = typer.Typer(
    cls=_OneLineGroup,
    name="privrl",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(
    invoke_without_command=True,
    epilog=examples(
        "privrl doctor",
        "privrl demo --out runs/demo",
        "privrl run stays.yaml --out runs/stays",
        note="Exit codes: 0 ok, 1 unexpected, 2 configuration, 3 budget, 4 refused as unsafe,"
        " 5 missing extra, 6 verification failed, 7 storage, 8 would be useless,"
        " 130 interrupted.",
    ),
)
def _root(
    context: typer.Context,
    debug: Annotated[
        bool, typer.Option("--debug", help="show the traceback of an error; stands anywhere")
    ] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="show the version", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Turn a sensitive offline-RL dataset into a private one, with an epsilon that is true."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


running.add_demo(app)
drafting.add_to(app)
datasets.add_to(app)
planning.add_to(app)
rehearsing.add_to(app)
running.add_run(app)
sweeping.add_to(app)
submitting.add_to(app)
sampling.add_to(app)
evaluation.add_to(app)
auditing.add_to(app)
app.add_typer(ledger.app)
app.add_typer(certificate.app)
app.add_typer(configuration.app)
doctor.add_to(app)
