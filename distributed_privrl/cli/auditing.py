"""``audit``: what an attacker makes of a run, and what one round of its mechanism shows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributed_privrl.cli.failures import interrupted_anew
from distributed_privrl.cli.helptext import LedgerUrl, Overrides, examples
from distributed_privrl.cli.text import show_values
from distributed_privrl.core.errors import ConfigError

if TYPE_CHECKING:
    from distributed_privrl.experiments.audit import Audit


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "audit",
        epilog=examples(
            "privrl audit stays.yaml --out runs/stays-canaries",
            "privrl audit runs/stays --held-out clinic/stays-held-out-v0 --out runs/stays-audit",
            "privrl audit runs/open --held-out clinic/stays-held-out-v0 --out runs/open-audit"
            " --against runs/stays-audit",
        ),
    )(audit)


def audit(
    target: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG.yaml|RUN_DIR", help="a configuration, or the --out of a finished run"
        ),
    ],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="a new folder: a path, s3://.. or gs://..")
    ],
    held_out: Annotated[
        str | None,
        typer.Option(
            "--held-out",
            metavar="ID",
            help="a dataset of the same source that the run has not seen; needed with RUN_DIR",
        ),
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="compare with an earlier audit of another run"),
    ] = None,
    overrides: Overrides = None,
    ledger: LedgerUrl = None,
) -> None:
    """Attack a finished run, and measure one round of its mechanism on made-up units.

    Of a run: do its losses tell members from rows held out, are released rows copies? The answers
    go to DIR/private, which is not for release; an audit costs no epsilon because it stays there.
    Of a configuration, and of a run: the canary round, which reads no data (DIR/canary.json).
    """
    from distributed_privrl.core.places import place_of
    from distributed_privrl.data.stored_folders import opened_folder

    with (
        opened_folder(place_of("RUN_DIR", target), name="RUN_DIR", work=False) as audited,
        opened_folder(place_of("--out", out)) as folder,
    ):
        _audit(audited, folder, held_out, against, overrides, ledger)


def _audit(
    target: Path,
    out: Path,
    held_out: str | None,
    against: Path | None,
    overrides: list[str] | None,
    ledger: str | None,
) -> None:
    if not target.exists():
        raise ConfigError(
            f"nothing at {target}: give the path of a configuration, a YAML file, or the --out of a"
            " finished run"
        )
    for_runs = {"--held-out": held_out, "--against": against, "--ledger": ledger}
    given = [name for name, value in for_runs.items() if value is not None]
    if target.is_dir() and overrides:
        raise ConfigError("-o changes a configuration; a run is audited as it was: leave it out")
    if not target.is_dir() and given:
        raise ConfigError(f"{given[0]} is for the audit of a run: give a RUN_DIR, or leave it out")

    from distributed_privrl.experiments.audit_checks import check_new, given_held_out

    check_new(out)  # before imports that take seconds
    if target.is_dir():
        given_held_out(held_out)

    from distributed_privrl.cli.execution import termination_as_interrupt
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.audit import audit_configuration, audit_run
    from distributed_privrl.experiments.registry import load_config
    from distributed_privrl.runtime.launch import start_executor

    try:
        with termination_as_interrupt(), shown_progress() as progress:
            if target.is_dir():
                found = audit_run(
                    target,
                    out=out,
                    held_out=held_out,
                    against=against,
                    store=DatasetStore(),
                    ledger_url=ledger,
                    start_executor=start_executor,
                    progress=progress,
                )
            else:
                config = load_config(target, overrides or [])
                found = audit_configuration(
                    config, out=out, start_executor=start_executor, progress=progress
                )
    except KeyboardInterrupt:
        raise interrupted_anew(out) from None
    paths = {"report": out / "canary.json", "not for release": out / "private" / "report.html"}
    show_values(_canary(found) | {name: str(path) for name, path in paths.items() if path.exists()})


def _canary(found: "Audit") -> dict[str, str]:
    canary = found.canary
    if isinstance(canary, str):
        return {"canary round": canary}
    mu, sampled = canary.mu, canary.sampled
    return {
        "mu of one round": f"{mu.value:.4f} ({mu.low:.4f} .. {mu.high:.4f}), charged"
        f" {mu.chance:.4f}",
        "sampled": f"{sampled.value:.4g} ({sampled.low:.4g} .. {sampled.high:.4g}) of the canaries,"
        f" configured {sampled.chance:.4g}",
    }
