"""A ledger's account, and the calls that runs make, each with what a test does not care about."""

from pathlib import Path
from typing import Any

from distributed_privrl.privacy.ledger import Account, Ledger, LedgerEntry
from distributed_privrl.privacy.ledger.records import Charge, GivenUp, Holding
from distributed_privrl.privacy.units import PrivacyBudget, Relation

DATASET, NULL = "clinic/stays-v0", Relation.REPLACE_WITH_NULL
SPECIFICATION = {"kind": "poisson_gaussian", "noise_multiplier": 1.5}
UNIT: dict[str, Any] = {"unit": "trajectory", "relation": NULL}
ACCOUNT: dict[str, Any] = {"dataset": DATASET, "fingerprint": "f1"}


def url_of(folder: Path) -> str:
    """Return the URL of the ledger in ``folder``."""
    return f"sqlite:///{folder / 'ledger.sqlite'}"


def set_budget(ledger: Ledger, **changed: Any) -> Account:
    names = {name: changed.pop(name, value) for name, value in ACCOUNT.items()}
    budget = PrivacyBudget(**({"epsilon": 10.0, "delta": 1e-5} | UNIT | changed))
    return ledger.set_budget(**names, budget=budget)


def open_run(ledger: Ledger, run_id: str = "run", **changed: Any) -> LedgerEntry:
    values = {"epsilon": 4.0, "delta": 1e-6, "max_rounds": 100, "event": SPECIFICATION}
    asked = Charge(entry_id=run_id, kind="rounds", **(ACCOUNT | UNIT | values | changed))
    return ledger.open_together([asked])[0]


def release(ledger: Ledger, nonce: str, draw: Any, **changed: Any) -> tuple[Any, LedgerEntry]:
    values = {"epsilon": 1.0, "delta": 0.0, "event": {"kind": "laplace"}}
    asked = Charge(entry_id=nonce, kind="release", **(ACCOUNT | UNIT | values | changed))
    return ledger.release_once(asked, draw=draw)


def holding(run_id: str = "run", **changed: Any) -> Holding:
    values = {"epsilon": 6.0, "delta": 1e-6, "units": None}
    return Holding(run_id=run_id, **(ACCOUNT | UNIT | values | changed))


def charge(entry_id: str = "run", **changed: Any) -> Charge:
    values = {"kind": "rounds", "epsilon": 4.0, "delta": 1e-6, "max_rounds": 100}
    values |= {"event": {}, "units": None, "hold": "run"}
    return Charge(entry_id=entry_id, **(ACCOUNT | UNIT | values | changed))


def freed_of(given_up: GivenUp) -> tuple[float, float]:
    """Return epsilon and delta that are free again."""
    return given_up.freed_epsilon, given_up.freed_delta


def account(ledger: Ledger) -> Account:
    return ledger.accounts()[0]
