"""Whether a dataset is part of what has an account already, whatever it is called.

Sharing rows is sharing people, and so is sharing their names: two accounts for them would each
promise what neither keeps.
"""

import shlex
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from distributed_privrl.core.errors import ConfigError, RowsError, RowsWarning, UnsafeError
from distributed_privrl.data.fingerprint import Inspection, inspect
from distributed_privrl.data.sketch import Overlap, Sketch, compare
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.certificate import Stage
from distributed_privrl.privacy.ledger import Account, Ledger


@dataclass(frozen=True, kw_only=True)
class Unrelated:
    """A dataset that shares nobody with another one, as the operator says.

    Args:
        dataset: its id.
        fingerprint: of its rows.
        why: the operator says so.
    """

    dataset: str
    fingerprint: str
    why: str


def find_unrelated(
    store: DatasetStore, ledger: Ledger, dataset: str, other: str, why: str
) -> Unrelated:
    """Return what is declared unrelated to a dataset: what has an account, or lies in the store.

    Raises:
        ConfigError: no reason, no such dataset, or it is the dataset itself.
    """
    if other == dataset:
        raise ConfigError(f"--unrelated-to {other} is the dataset itself: name another")
    if not why.strip():
        raise ConfigError("--unrelated-to needs --why, which certificates show")
    for account in ledger.accounts():
        if account.dataset == other:
            return Unrelated(dataset=other, fingerprint=account.fingerprint, why=why)
    return Unrelated(dataset=other, fingerprint=inspect(store, other).fingerprint, why=why)


def check_unrelated(
    ledger: Ledger,
    dataset: str,
    found: Inspection,
    *,
    declared: Sequence[Unrelated] = (),
    public: bool = False,
) -> None:
    """Refuse a dataset that has rows or units of another's account, unless that was declared.

    Args:
        ledger: whose accounts are looked at.
        dataset: its id.
        found: what `inspect` found in it, with a sketch where there are accounts.
        declared: what is declared now, beside what the ledger has.
        public: whether it shall be public.

    Raises:
        RowsError: it has more than 1 % of the other's rows, or the other of its, beyond what
            halves of that dataset have in common; where everything is discrete, beyond none. Or
            either has units with the names of more than 1 % of the other's.

    Warns:
        RowsWarning: it has, and they were declared unrelated.

    Privacy: a message to the operator alone: it tells, roughly, how many rows or units two datasets
        share.
    """
    whys = {one.fingerprint: one.why for one in declared}
    for known in ledger.register.declarations(found.fingerprint):
        other = (
            known.other_fingerprint
            if known.fingerprint == found.fingerprint
            else (known.fingerprint)
        )
        whys.setdefault(other, known.why)
    for account, overlap in _overlaps(ledger, dataset, found):
        shares = _shares(dataset, account, overlap)
        if account.fingerprint in whys:
            warnings.warn(
                f"{shares}; they were declared unrelated: {whys[account.fingerprint]}",
                RowsWarning,
                stacklevel=2,
            )
        else:
            raise RowsError(_refusal(dataset, account, overlap, shares, public=public))


def _overlaps(ledger: Ledger, dataset: str, found: Inspection) -> Iterator[tuple[Account, Overlap]]:
    """Yield the accounts of others that share more with a dataset than chance allows."""
    others = [
        account
        for account in ledger.accounts()
        if account.dataset != dataset and account.fingerprint != found.fingerprint
    ]
    sketches = ledger.register.sketches() if others else {}
    for account in others:
        if (stored := sketches[account.dataset]) is None or found.sketch is None:
            raise UnsafeError(
                f"{account.dataset} has a budget, and nothing in the ledger says which rows it has:"
                " set that budget again with `privrl ledger budget`"
            )
        overlap = compare(found.sketch, Sketch.from_bytes(stored))
        if overlap.suspicious:
            yield account, overlap


def _shares(dataset: str, account: Account, overlap: Overlap) -> str:
    """Return what two datasets share, rows where those tell it."""
    if overlap.rows_suspicious:
        what, theirs, mine = "rows", overlap.theirs, overlap.mine
    else:
        what, theirs, mine = "units, by their names,", overlap.their_units, overlap.my_units
    return (
        f"{dataset} has {_percent(theirs)} of the {what} of {account.dataset}, which has a budget,"
        f" and {account.dataset} has {_percent(mine)} of its {what.rstrip(',')}"
    )


def _refusal(dataset: str, account: Account, overlap: Overlap, shares: str, *, public: bool) -> str:
    """Return what to do, likeliest first, and why: three sentences."""
    known = account.dataset
    first, second = (known, dataset) if public else (dataset, known)
    line = f"privrl ledger budget {shlex.quote(first)} ... --unrelated-to {shlex.quote(second)}"
    declare = f'nobody is in both, declare it: `{line} --why "REASON"`'
    same = _for_the_same_people(account, public=public)
    if not overlap.rows_suspicious:
        chance = ", though numbers such as 1, 2, 3 may name different people in different tables"
    elif overlap.discrete:
        chance = ", though rows of categories may be equal by chance"
    else:
        return f"{same}. If {declare}. {shares}"
    return f"if {declare}. If somebody is, {same}. {shares}{chance}"


def _for_the_same_people(account: Account, *, public: bool) -> str:
    """Return what to do about an account whose people, or some of them, are in another dataset."""
    known = account.dataset
    use = "it cannot be public" if public else f"use {known}"
    if not account.spent_epsilon and not account.spent_delta:
        return f"{use}, or `privrl ledger withdraw {shlex.quote(known)}`: nothing of it is spent"
    if public:
        return use
    return (
        f"{use} as it was imported, which has {account.left} left (no other import of the same"
        " people can share it)"
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def with_declarations(
    stages: Sequence[Stage], ledger: Ledger, datasets: Sequence[str]
) -> list[Stage]:
    """Return stages that name, among what they assume, what was declared of a run's datasets.

    Args:
        stages: of the certificate.
        ledger: what keeps the declarations.
        datasets: ids of the run's sensitive and public datasets.
    """
    stated = [
        f"{dataset} declared unrelated to {one.other_than(dataset)}: {one.why}"
        for dataset in datasets
        for one in ledger.register.declarations()
        if dataset in (one.dataset, one.other)
    ]
    return [
        stage.model_copy(
            update={"assumptions": tuple(dict.fromkeys([*stage.assumptions, *stated]))}
        )
        for stage in stages
    ]
