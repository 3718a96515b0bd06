"""What help texts share: examples, groups that print their help, options of several verbs."""

from typing import Annotated

import typer


def examples(*commands: str, note: str = "") -> str:
    """Return the end of a help text: one example a line, kept as written.

    Args:
        commands: whole command lines.
        note: a paragraph before them.
    """
    kept = "\b\n" + "\n".join(["Examples:", *(f"  {command}" for command in commands)])
    return f"{note}\n\n{kept}" if note else kept


def command_group(name: str, summary: str, *commands: str) -> typer.Typer:
    """Return a group of commands that prints its help when it is called alone.

    Args:
        name: of the group.
        summary: its help text.
        commands: its examples.
    """
    group = typer.Typer(name=name, rich_markup_mode=None)

    @group.callback(invoke_without_command=True, help=summary, epilog=examples(*commands))
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group


OutPlace = Annotated[
    str, typer.Option("--out", metavar="DIR", help="the run's folder: a path, s3://.. or gs://..")
]

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        metavar="PATH=VALUE",
        help="set a key of the configuration, e.g. -o privacy.epsilon=2; may be repeated",
    ),
]

LedgerUrl = Annotated[
    str | None,
    typer.Option(
        "--ledger",
        metavar="URL",
        help="the privacy ledger, e.g. sqlite:////data/ledger.sqlite or"
        " postgresql://user@host/ledger (default: PRIVRL_LEDGER, else a SQLite file in your data"
        " folder)",
    ),
]
