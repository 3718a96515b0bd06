"""What the ledger and the datasets' own marks say against a use of them.

One dataset has one account. These checks keep it so where rows lie in several datasets: a dataset
and the sides that ``privrl split`` made of it share one, and what has one is not public.
"""

from collections.abc import Sequence

from distributed_privrl.core.config import RunConfig
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.fingerprint import inspect
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.privacy.ledger import Account, Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation


def give_budget(
    store: DatasetStore, ledger: Ledger, *, dataset: str, budget: PrivacyBudget
) -> Account:
    """Set or change the budget of a sensitive dataset.

    Args:
        store: where the dataset lies.
        ledger: what keeps the account.
        dataset: its id.
        budget: of its one account.

    Raises:
        ConfigError: no such dataset, or it does not know the unit.
        BudgetError: less than what is spent.
        UnsafeError: as in `check_sensitive`, or the ledger refuses it.
    """
    store.check_unit(dataset, budget.unit)
    check_sensitive(store, ledger, dataset, relation=budget.relation)
    fingerprint = inspect(store, dataset).fingerprint
    return ledger.set_budget(dataset=dataset, fingerprint=fingerprint, budget=budget)


def check_inputs(config: RunConfig, store: DatasetStore, ledger: Ledger) -> None:
    """Check that a run's datasets are what its configuration calls them.

    Raises:
        UnsafeError: as in `check_sensitive` and `check_public`.
    """
    relation = Relation(config.privacy.relation)
    check_sensitive(store, ledger, config.data.sensitive, relation=relation)
    check_public(store, ledger, config.data.public)


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
        UnsafeError: one is a side of a sensitive dataset, was made from one without a guarantee, or
            its id, the same rows in the same order, or a side of it have a budget.

    Privacy: rows that pass are used without noise. Whether they are nobody's secret is their
    owner's word: this finds where the word contradicts a mark or the ledger. A copy with rows
    changed, removed or in another order is another dataset to the ledger, and passes.
    """
    for dataset in datasets:
        check_unmarked(store.info(dataset))
        if (known := account_of(store, ledger, dataset)) is not None:
            raise UnsafeError(
                f"{dataset} cannot be public: its id, or the same rows in the same order, have a"
                f" privacy budget as {known.dataset} (other copies are not found: see"
                " docs/threat-model.md)"
            )
        if (other := _account_of_kin(store, ledger, dataset)) is not None:
            raise UnsafeError(
                f"{dataset} cannot be public: some of its rows have a privacy budget as {other}"
            )


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
    fingerprint = inspect(store, dataset).fingerprint
    found = (one for one in accounts if dataset == one.dataset or fingerprint == one.fingerprint)
    return next(found, None)


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
