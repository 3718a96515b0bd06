"""``ledger budget``, ``show``, ``export`` and ``settle``: what datasets may spend, and spent."""

import contextlib
import csv
import io
import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distributed_privrl.cli.helptext import LedgerUrl, command_group, examples
from distributed_privrl.cli.text import show_table
from distributed_privrl.core.errors import ConfigError

if TYPE_CHECKING:
    from distributed_privrl.privacy.ledger import Account, Declaration, Hold, LedgerEntry

RELEASED, NOT_RELEASED = "released", "drawn, not released"
GOES_ON = (
    "not released yet: `privrl run CONFIG.yaml --out DIR --resume` goes on with such a run, unless"
    " it was given up, and charges nothing more"
)
_INTERNAL = ("id", "fingerprint", "partition")
EXPORTED = (
    *("dataset", "unit", "relation", "id", "kind", "status", "epsilon", "delta"),
    *("reserved_rounds", "drawn_rounds", "committed_rounds", "max_rounds", "units"),
    *("made_by", "created", "certificate_digest"),
)
"""Columns of `ledger export`."""

app = command_group(
    "ledger",
    "Set and show the privacy budgets of datasets.",
    "privrl ledger budget clinic/stays-v0 --epsilon 8 --delta 1e-6 --unit trajectory",
    "privrl ledger show",
)


@app.command(
    "budget",
    epilog=examples(
        "privrl ledger budget clinic/stays-v0 --epsilon 8 --delta 1e-6 --unit trajectory",
        "privrl ledger budget maze/umaze-v0 --epsilon 10 --delta 1e-6 --unit transition",
        "privrl ledger budget clinic/2024-v0 --epsilon 8 --delta 1e-6 --unit trajectory"
        " --unrelated-to clinic/stays-v0 --why 'another clinic'",
    ),
)
def set_budget(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="id of the dataset")],
    epsilon: Annotated[float, typer.Option(metavar="E", help="all that runs may spend together")],
    delta: Annotated[
        float,
        typer.Option(
            metavar="D", help="likewise; a tenth of 1/units or less: 1e-5 for up to 10,000 units"
        ),
    ],
    unit: Annotated[
        str,
        typer.Option(
            metavar="U", help="what one person contributes: transition, trajectory or a column"
        ),
    ],
    relation: Annotated[
        Literal["replace_with_null", "add_or_remove", "replace_one", "policy_level"],
        typer.Option(help="what neighbouring datasets are"),
    ] = "replace_with_null",
    unrelated_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ID",
            help="a dataset with equal rows that shares nobody with it, by your word; needs --why",
        ),
    ] = None,
    why: Annotated[
        str, typer.Option(metavar="TEXT", help="they share nobody; shown on certificates")
    ] = "",
    ledger: LedgerUrl = None,
) -> None:
    """Set or raise the budget of a dataset, for one unit and relation.

    A delta of 1/units would let a run publish one of the units: give a tenth of it or less, 1e-5
    for up to 10,000 units. One half or more is refused, whatever the number of units.
    """
    if why and not unrelated_to:
        raise ConfigError("--why says why datasets are unrelated: give --unrelated-to, too")
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.accounts import give_budget
    from distributed_privrl.privacy.ledger import Ledger
    from distributed_privrl.privacy.units import PrivacyBudget, Relation, unit_in_words

    budget = PrivacyBudget(epsilon=epsilon, delta=delta, unit=unit, relation=Relation(relation))
    store = DatasetStore()
    store.check_unit(dataset, unit)
    with contextlib.closing(Ledger(ledger)) as opened:
        account = give_budget(
            store,
            opened,
            dataset=dataset,
            budget=budget,
            unrelated_to=unrelated_to or (),
            why=why,
        )
    typer.echo(
        f"{dataset}: epsilon {account.epsilon:g} and delta {account.delta:g} for each"
        f" {unit_in_words(account.unit)} ({account.relation}); {account.remaining_epsilon:.6g} and"
        f" {account.remaining_delta:.6g} left"
    )


@app.command(
    "show",
    epilog=examples("privrl ledger show", "privrl ledger show clinic/stays-v0 --json"),
)
def show(
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="id of one dataset (default: all)")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="write JSON")] = False,
    ledger: LedgerUrl = None,
) -> None:
    """Show budgets, what is spent of them, every charge, and what runs hold before they charge."""
    from distributed_privrl.privacy.ledger import Ledger

    with contextlib.closing(Ledger(ledger)) as opened:
        accounts = opened.accounts()
        entries = opened.entries(dataset)
        holds = opened.holds(dataset)
        declared = [
            one
            for one in opened.register.declarations()
            if dataset in (None, one.dataset, one.other)
        ]
    if dataset is not None:
        known = [account.dataset for account in accounts]
        accounts = [account for account in accounts if account.dataset == dataset]
        if not accounts:
            others = f" (set: {', '.join(known)})" if known else ""
            raise ConfigError(f"no budget is set for {dataset}{others}: see `privrl ledger budget`")
    if as_json:
        typer.echo(json.dumps(_as_json(accounts, entries, holds, declared), indent=2))
    elif not accounts:
        typer.echo("no budget is set: see `privrl ledger budget --help`")
    else:
        _show_accounts(accounts)
        _show_entries(entries, holds)
        _show_declarations(declared)


@app.command(
    "export",
    epilog=examples(
        "privrl ledger export > charges.csv", "privrl ledger export clinic/stays-v0 --out stays.csv"
    ),
)
def export(
    dataset: Annotated[
        str | None, typer.Argument(metavar="[DATASET]", help="id of one dataset (default: all)")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="a new file (default: standard output)"),
    ] = None,
    ledger: LedgerUrl = None,
) -> None:
    """Write every charge and hold as CSV: what was spent of which budget, by whom, and when.

    An open hold has no rounds: what it holds may still be charged, or come free.
    """
    from distributed_privrl.core.files import write_atomically
    from distributed_privrl.privacy.ledger import Ledger

    with contextlib.closing(Ledger(ledger)) as opened:
        charges = [asdict(one) for one in opened.entries(dataset)]
        charges += [
            {**asdict(one), "id": one.run_id, "kind": "hold"} for one in opened.holds(dataset)
        ]
    text = io.StringIO()
    writer = csv.DictWriter(text, EXPORTED, lineterminator="\n")
    writer.writeheader()
    for charge in charges:
        writer.writerow({name: charge.get(name) for name in EXPORTED})
    if out is None:
        typer.echo(text.getvalue(), nl=False)
    elif out.exists():
        raise ConfigError(f"--out {out} exists: choose another file")
    else:
        write_atomically(out, text.getvalue(), mode=0o600)


@app.command(
    "settle",
    epilog=examples("privrl ledger settle stays-3f2a9c", "privrl ledger settle stays-3f2a9c --yes"),
)
def settle(
    run: Annotated[str, typer.Argument(metavar="RUN", help="id of the run (`ledger show`)")],
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    ledger: LedgerUrl = None,
) -> None:
    """Close a run that was given up: free what it has begun nothing of, charge the rest in full.

    A release that was drawn, and rounds of which one was reserved, stay charged as they were
    reserved. The run's secrets are erased: it cannot be resumed. `privrl run --resume` instead goes
    on, and lowers the charge to what is drawn.
    """
    from distributed_privrl.privacy.ledger import Ledger

    with contextlib.closing(Ledger(ledger)) as opened:
        if not yes and opened.has_begun(run):
            typer.confirm(f"{run} has begun, and could not be resumed. Close it?", abort=True)
        given_up = opened.give_up(run)
    typer.echo(
        f"{run}: epsilon {given_up.freed_epsilon:.6g} and delta {given_up.freed_delta:.6g} are free"
        f" again, {given_up.charged_epsilon:.6g} and {given_up.charged_delta:.6g} stay charged; it"
        " cannot be resumed"
    )


@app.command("withdraw", epilog=examples("privrl ledger withdraw clinic/stays-v0"))
def withdraw(
    dataset: Annotated[str, typer.Argument(metavar="DATASET", help="id of the dataset")],
    ledger: LedgerUrl = None,
) -> None:
    """Remove a budget of which nothing was ever charged, to import the same people otherwise.

    A budget that a run has charged stays for good, whatever becomes of the dataset.
    """
    from distributed_privrl.privacy.ledger import Ledger

    with contextlib.closing(Ledger(ledger)) as opened:
        account = opened.withdraw(dataset)
    typer.echo(
        f"{dataset}: its budget of epsilon {account.epsilon:g} and delta {account.delta:g} is gone;"
        " nothing was charged to it"
    )


def _as_json(
    accounts: "list[Account]",
    entries: "list[LedgerEntry]",
    holds: "list[Hold]",
    declared: "list[Declaration]",
) -> dict[str, Any]:
    """Return all without fingerprints and digests, which stay in the ledger."""
    from distributed_privrl.privacy.events import POLICIES

    shown, charges = [], []
    for account in accounts:
        values = {k: v for k, v in asdict(account).items() if k not in _INTERNAL}
        remaining = {
            "remaining_epsilon": account.remaining_epsilon,
            "remaining_delta": account.remaining_delta,
        }
        shown.append(values | remaining)
    for entry in entries:
        event = {k: v for k, v in entry.event.items() if k != POLICIES}
        charges.append(asdict(entry) | {"event": event})
    declarations = [
        {"dataset": one.dataset, "unrelated_to": one.other, "why": one.why, "made": one.created}
        for one in declared
    ]
    return {
        "accounts": shown,
        "entries": charges,
        "holds": [asdict(hold) for hold in holds],
        "declarations": declarations,
    }


def _show_accounts(accounts: "list[Account]") -> None:
    show_table(
        ("dataset", "unit", "relation", "epsilon spent", "delta spent"),
        [
            (
                account.dataset,
                account.unit,
                account.relation,
                f"{account.spent_epsilon:.6g} of {account.epsilon:g}",
                f"{account.spent_delta:.6g} of {account.delta:g}",
            )
            for account in accounts
        ],
    )


def _show_entries(entries: "list[LedgerEntry]", holds: "list[Hold]") -> None:
    from distributed_privrl.privacy.ledger.stamps import shown_moment

    if not entries and not holds:
        return
    typer.echo()
    show_table(
        ("charge", "dataset", "status", "epsilon", "delta", "rounds reserved", "made", "by"),
        [
            (
                entry.id,
                entry.dataset,
                _state(entry),
                f"{entry.epsilon:.6g}",
                f"{entry.delta:g}",
                f"{entry.reserved_rounds} of {entry.max_rounds}",
                shown_moment(entry.created),
                entry.made_by or "unknown",
            )
            for entry in entries
        ]
        + [
            (
                hold.run_id,
                hold.dataset,
                "held",
                f"{hold.epsilon:.6g}",
                f"{hold.delta:g}",
                "not charged yet",
                shown_moment(hold.created),
                hold.made_by or "unknown",
            )
            for hold in holds
        ],
    )

    if any(_state(entry) != RELEASED for entry in entries):
        typer.echo(f"\n{GOES_ON}", err=True)


def _state(entry: "LedgerEntry") -> str:
    """Return where a charge stands: an open one may draw more, of what is charged already."""
    if entry.status == "open":
        return "open"
    return NOT_RELEASED if entry.certificate_digest is None else RELEASED


def _show_declarations(declared: "list[Declaration]") -> None:
    from distributed_privrl.privacy.ledger.stamps import shown_moment

    if not declared:
        return
    typer.echo()
    show_table(
        ("declared of", "unrelated to", "because", "made"),
        [(one.dataset, one.other, one.why, shown_moment(one.created)) for one in declared],
    )
