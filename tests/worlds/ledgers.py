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
_TOGETHER = """
reading, writing = os.pipe()
children = []
for process in range(COUNT):
    child = os.fork()
    if not child:
        os.close(writing)
        os.read(reading, 1)  # until all are there
        code = 1
        try:
            one(process)
            sys.stdout.flush()
            code = 0
        except Exception:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    children.append(child)
os.close(writing)
sys.exit(sum(os.waitpid(child, 0)[1] != 0 for child in children))
"""


def together(program: str, count: int) -> str:
    """Return a program that does a program's ``one(process)`` in ``count`` processes at once.

    They fork from one that has imported what they need. Its exit code says how many failed.
    """
    forked = _TOGETHER.replace("COUNT", str(count))
    return f"import contextlib, os, sys, traceback\n{program}\n{forked}"


RACE = together(
    """
from distributed_privrl.core.errors import BudgetError
from distributed_privrl.privacy.ledger import Ledger, attempts, budgets, holds
from distributed_privrl.privacy.ledger.records import Charge, Holding
from distributed_privrl.privacy.units import Relation

common = {"dataset": "clinic/stays-v0", "fingerprint": "f1", "unit": "trajectory"}
common |= {"relation": Relation.REPLACE_WITH_NULL, "units": None}

def run(ledger, name):
    ledger.open_hold(Holding(run_id=name, epsilon=0.12, delta=1e-9, **common))
    cost = {"epsilon": 0.02, "delta": 0.0, "event": {}, "hold": name}
    count = Charge(entry_id=f"{name}/count", kind="release", **cost, **common)
    ledger.release_once(count, draw=lambda: 1)
    rounds = {"epsilon": 0.1, "delta": 1e-9, "max_rounds": 9, "event": {}, "hold": name}
    last = Charge(entry_id=name, kind="rounds", **rounds, **common)
    ledger.open_together([last], closes=name)

def one(process):
    ledger = Ledger(sys.argv[1])
    with contextlib.suppress(BudgetError):
        run(ledger, f"run-{process}")
""",
    16,
)
"""A program: sixteen processes that each want a share of what is left of one budget."""


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
