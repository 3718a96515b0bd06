"""What the ledger and the datasets' own marks say against a use of them.

One dataset has one account. These checks keep it so where rows lie in several datasets: a dataset
and the sides that ``privrl split`` made of it share one, and what has one is not public. Datasets
that share rows without being marked are found by `kinship`.
"""

from collections.abc import Sequence

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError, RowsError, UnsafeError
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.fingerprint import Inspection, inspect
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.kinship import check_unrelated, find_unrelated
from distributed_privrl.privacy.ledger import Account, Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation, check_delta_for_people


def give_budget(
    store: DatasetStore,
    ledger: Ledger,
    *,
    dataset: str,
    budget: PrivacyBudget,
    unrelated_to: Sequence[str] = (),
    why: str = "",
) -> Account:
    """Set or change the budget of a sensitive dataset.

    Args:
        store: where the dataset lies.
        ledger: what keeps the account.
        dataset: its id.
        budget: of its one account.
        unrelated_to: datasets that look like it and, the operator says, share nobody with it.
        why: that is so; written down, and shown on certificates.

    Raises:
        ConfigError: no such dataset, it does not know the unit, or a declaration without a reason.
        BudgetError: less than what is spent.
        UnsafeError: as in `check_delta_for_people`, `check_sensitive` and `check_unrelated`, or
            the ledger refuses it.

    Warns:
        UserWarning: it shares rows with a dataset that was declared unrelated.
    """
    check_delta_for_people(budget.delta)
    store.check_unit(dataset, budget.unit)
    check_sensitive(store, ledger, dataset, relation=budget.relation)
    found = inspect(store, dataset, unit=budget.unit, key=ledger.register.key())
    declared = [find_unrelated(store, ledger, dataset, other, why) for other in unrelated_to]
    check_unrelated(ledger, dataset, found, declared=declared)
    assert found.sketch is not None
    account = ledger.set_budget(
        dataset=dataset,
        fingerprint=found.identity,
        budget=budget,
        sketch=found.sketch.to_bytes(),
    )
    for other in declared:
        ledger.register.declare_unrelated(
            (dataset, found.fingerprint), (other.dataset, other.fingerprint), why=other.why
        )
    return account


def check_inputs(config: RunConfig, store: DatasetStore, ledger: Ledger) -> None:
    """Check that a run's datasets are what its configuration calls them.

    Raises:
        UnsafeError: as in `check_sensitive` and `check_public`.
    """
    relation = Relation(config.privacy.relation)
    check_sensitive(store, ledger, config.data.sensitive, relation=relation)
    check_public(store, ledger, config.data.public)


def inspect_inputs(
    config: RunConfig, store: DatasetStore, ledger: Ledger, *, progress: Progress = silent
) -> Inspection:
    """Look at a run's rows, and check that its account is that of their units.

    Args:
        config: of the run.
        store: where its datasets lie.
        ledger: what keeps the account.
        progress: told where the work is.

    Raises:
        UnsafeError: a sensitive row is in a public dataset, too; the ledger knows the rows under
            another id or as those of other units; or they are part of another account's
            (`check_unrelated`).

    Privacy: a message to the operator alone: it tells that a public row is a sensitive one.
    """
    data = config.data
    progress("inspecting data", 0, 1)
    key = ledger.register.key() if ledger.accounts() else None
    found = inspect(store, data.sensitive, unit=data.unit, key=key, public_ids=data.public)
    if found.overlap:
        raise RowsError(
            f"a row of {data.sensitive} is also in a public dataset: public data must not hold"
            " sensitive rows; remove them and run again"
        )
    if config.privacy.epsilon is not None:
        ledger.register.check_data(data.sensitive, found.identity, data.unit)
        check_unrelated(ledger, data.sensitive, found)
    progress("inspecting data", 1, 1)
    return found


def check_sensitive(
    store: DatasetStore, ledger: Ledger, dataset: str, *, relation: Relation
) -> None:
    """Check that a dataset may be charged under a relation.

    Args:
        store: where the dataset lies.
        ledger: whose accounts are looked at.
        dataset: its id.
        relation: what neighbouring datasets are.

    Raises:
        UnsafeError: it was declared public; it is a side of a split by position and the relation
            removes units; or another part of the same data has an account.
    """
    info = store.info(dataset)
    if info.declared_public:
        raise UnsafeError(
            f"{dataset} was declared public, so it is not sensitive: collect or import it without"
            " that declaration"
        )
    if info.split_by_position and relation is Relation.ADD_OR_REMOVE:
        raise UnsafeError(
            f"{dataset} is a side of a split by position: removing one unit would move others to"
            " the other side; use the relation replace_with_null, or split by a unit column"
        )
    if (other := _account_of_kin(store, ledger, dataset)) is not None:
        raise UnsafeError(
            f"{dataset} and {other} are parts of the same data, and {other} has a budget: two"
            f" would add up for the units in both; use {other}"
        )


def check_public(store: DatasetStore, ledger: Ledger, datasets: Sequence[str]) -> None:
    """Check that nothing says of public datasets that they are not.

    Args:
        store: where they lie.
        ledger: whose accounts are looked at.
        datasets: their ids.

    Raises:
        UnsafeError: one is a side of a sensitive dataset, was made from one without a guarantee,
            its id, its rows or a side of it have a budget, or rows of it are among those of an
            account (`check_unrelated`).

    Warns:
        UserWarning: it shares rows with an account that it was declared unrelated to.

    Privacy: rows that pass are used without noise. Whether they are nobody's secret is their
    owner's word: this finds where the word contradicts a mark or the ledger. Rows with changed
    numbers are other rows, and pass.
    """
    accounts = ledger.accounts()
    for dataset in datasets:
        check_unmarked(store.info(dataset))
        if not accounts:
            continue
        found = inspect(store, dataset, key=ledger.register.key())
        if (known := _account_of(accounts, dataset, found)) is not None:
            raise RowsError(
                f"{dataset} cannot be public: its id or its rows have a privacy budget as"
                f" {known.dataset}"
            )
        if (other := _account_of_kin(store, ledger, dataset)) is not None:
            raise RowsError(
                f"{dataset} cannot be public: some of its rows have a privacy budget as {other}"
            )
        check_unrelated(ledger, dataset, found, public=True)


def check_unmarked(info: DatasetInfo) -> None:
    """Check that a dataset that shall be public says nothing else of itself.

    Raises:
        UnsafeError: it is a side of a sensitive one, or was made from one without a guarantee.
    """
    if info.certificate and info.certificate.get("status") != "valid":
        raise UnsafeError(
            f"{info.id} cannot be public: it was made from sensitive rows, and its certificate is"
            f" {info.certificate.get('status')}"
        )
    if info.split_of:
        raise UnsafeError(
            f"{info.id} cannot be public: it is a side of {info.split_of[-1]}, which was not"
            " declared public when it was split"
        )


def check_splittable(store: DatasetStore, ledger: Ledger, dataset: str) -> None:
    """Check that a dataset may be split: a side of it would have to share its account.

    Raises:
        UnsafeError: it has an account.
    """
    if (known := account_of(store, ledger, dataset)) is not None:
        raise UnsafeError(
            f"{dataset} has a budget as {known.dataset}, and its sides could not get one besides:"
            " split before a budget is set"
        )


def account_of(store: DatasetStore, ledger: Ledger, dataset: str) -> Account | None:
    """Return the account of a dataset's id or of its rows, if there is one."""
    if not (accounts := ledger.accounts()):
        return None
    return _account_of(accounts, dataset, inspect(store, dataset))


def _account_of(accounts: Sequence[Account], dataset: str, found: Inspection) -> Account | None:
    same = (a for a in accounts if dataset == a.dataset or found.fingerprint == a.fingerprint)
    return next(same, None)


def _account_of_kin(store: DatasetStore, ledger: Ledger, dataset: str) -> str | None:
    """Return the id of another part of the same data that has an account, if there is one.

    A part that was deleted counts: what it was split from, and its other side, remember it.
    """
    whole, _ = _relations(store, dataset)
    kin = {*whole, *(side for one in whole for side in _relations(store, one)[1])}
    for other in (account.dataset for account in ledger.accounts()):
        if other != dataset and (other in kin or whole & _relations(store, other)[0]):
            return other
    return None


def _relations(store: DatasetStore, dataset: str) -> tuple[set[str], set[str]]:
    """Return a dataset with what it is a part of, and its sides, as far as they are known."""
    try:
        info = store.info(dataset)
    except ConfigError:
        return {dataset}, set()
    return {dataset, *info.split_of}, set(info.split_into)
