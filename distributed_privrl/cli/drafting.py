"""``init``: from a table to drafts of its schema, bounds and configuration."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributed_privrl.cli.helptext import examples
from distributed_privrl.cli.logs import tell_owner
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.csv_files import Separator

if TYPE_CHECKING:
    from distributed_privrl.experiments.drafts import Draft


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "init",
        epilog=examples(
            "privrl init stays.csv",
            "privrl init stays.csv --out clinic --dataset clinic/stays-v0",
            "privrl init stays.csv --unit patient_id --trajectory stay_id --order hour"
            " --action dose --reward gain",
            "privrl init survey.parquet --unit transition --trajectory none",
            "privrl init stays.csv --separator semicolon",
        ),
    )(init)


def init(
    table: Annotated[
        Path, typer.Argument(metavar="TABLE", help="a .csv or .parquet file, a row a line")
    ],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="where the drafts go; none is overwritten")
    ] = Path(),
    dataset: Annotated[
        str | None,
        typer.Option(metavar="ID", help="id to import it as (default: the file's name, -v0)"),
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="column of the person; transition: a row is all"),
    ] = None,
    trajectory: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="column of the trajectory; none: rows on their own"),
    ] = None,
    order: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="column of the time within a trajectory")
    ] = None,
    action: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="column of the action, or none; may be repeated"),
    ] = None,
    reward: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="column of the reward, or none")
    ] = None,
    separator: Annotated[
        Separator | None,
        typer.Option(help="of the fields of a CSV file (default: as its header seems to have it)"),
    ] = None,
) -> None:
    """Draft schema.yaml, bounds.yaml and config.yaml for a table.

    The drafts have the names, kinds and roles of the columns, as they seem to be: correct them.
    Values are left blank (bounds, categories, numbers of units): fill them in by what you know
    without a look at the rows. Import, plan and run refuse a file with blanks and name its lines.

    What standard error says of the rows (values, gaps, ties, lengths) is exact and for the owner of
    the table alone: do not publish it, and do not fill in the blanks by it.
    """
    from distributed_privrl.core.checks import check_dataset_id
    from distributed_privrl.core.files import storage_errors, write_atomically
    from distributed_privrl.data.profile import Roles, profile_file
    from distributed_privrl.experiments.drafts import AskedRoles, dataset_id, drafted

    if order is not None and trajectory in (None, "none"):
        raise ConfigError("--order sorts the rows of a trajectory: name it with --trajectory")
    asked = AskedRoles(
        rows=Roles(unit=unit, trajectory=trajectory, order=order),
        action=tuple(action or ()),
        reward=reward,
    )
    name = check_dataset_id("--dataset", dataset or dataset_id(table))
    profile = profile_file(table, asked.rows, separator=separator)
    draft = drafted(profile, asked, source=table, dataset=name)
    files = {out / file: text for file, text in draft.files(out).items()}
    if there := [str(path) for path in files if path.exists()]:
        raise ConfigError(f"{', '.join(there)} exists already: move it, or give another --out")
    typer.echo("for the owner of the table alone, do not publish it:", err=True)
    tell_owner(f"  {line}" for line in profile.found.open(Purpose.OWNER))
    with storage_errors(f"make {out}"):
        out.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        write_atomically(path, text)
        typer.echo(str(path))
    typer.echo("\n".join(_next(draft, table, out)))


def _named(draft: "Draft", role: str, columns: Sequence[str]) -> str:
    """Return the columns that have a role, or what to do if none is called so."""
    if role not in draft.unnamed:
        told = f" (called so: --{role} none if it is none)" if role in draft.found else ""
        return (", ".join(columns) or "none") + told
    return f"none (no column that changes is called so: if one is, name it with --{role} COLUMN)"


def _unit_guess(draft: "Draft") -> str:
    """Return what to say of a unit that nothing told: all that is protected depends on it."""
    if not draft.unit_guessed:
        return ""
    return " (GUESSED, no column is called like a person: name it with --unit COLUMN)"


def _rows(draft: "Draft") -> str:
    """Return what a row belongs to."""
    if draft.trajectory is not None:
        return f"trajectories by {draft.trajectory}, in the order of {draft.order or 'the file'}"
    if draft.unit is None:
        return "each on its own"
    if draft.unit == "transition":
        return "each on its own, and a unit: where a person may have several, name --unit COLUMN"
    return (
        f"each on its own: a release does not tell which rows are of one {draft.unit}; for that,"
        f" draft with --trajectory {draft.unit} --order COLUMN"
    )


def _next(draft: "Draft", table: Path, out: Path) -> list[str]:
    """Return what to do with the drafts."""
    from distributed_privrl.experiments.drafts import released_id

    schema, config = str(out / "schema.yaml"), str(out / "config.yaml")
    others = [name for name in draft.profile.units if name != draft.unit]
    unit = draft.unit or "blank"
    commas = draft.profile.separator == "comma"
    return [
        "",
        *([] if commas else [f"fields: separated by {draft.profile.separator}s"]),
        f"unit: {unit}" + (f" (or {', '.join(others)})" if others else "") + _unit_guess(draft),
        f"rows: {_rows(draft)}",
        f"action: {_named(draft, 'action', draft.action)}",
        f"reward: {_named(draft, 'reward', draft.rewarded)}",
        "",
        "correct the drafts, fill in their blanks, and go on with:",
        shlex.join(
            ["privrl", "import", str(table), "--schema", schema, "--dataset", draft.dataset]
        ),
        shlex.join(["privrl", "plan", config]),
        shlex.join(["privrl", "rehearse", config]),
        "the budget line that plan prints",
        shlex.join(["privrl", "run", config, "--out", "run"]),
        shlex.join(["privrl", "certificate", "verify", "run/certificate.json"]),
        shlex.join(
            [
                "privrl",
                "export",
                released_id(draft.dataset),
                "--format",
                "csv",
                "--out",
                "private.csv",
                "--rows-only",
            ]
        ),
    ]
