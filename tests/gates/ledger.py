"""Gates on what the ledger promises runs: their whole cost from the start, and no more."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from distributed_privrl.core.config import DataConfig, NoisyCount, PrivacyConfig
from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.noise import SeededNoise
from distributed_privrl.privacy.units import PrivacyBudget, Relation, UnitCount
from distributed_privrl.stages.charging import (
    charges_of,
    count_units,
    held_budget,
    open_charges,
)
from distributed_privrl.stages.round_plan import RoundPlan, RoundsConfig
from tests.worlds.ledgers import release

DATASET = "clinic/stays-v0"
NULL = Relation.REPLACE_WITH_NULL
PRIVACY = PrivacyConfig(epsilon=6.0, delta=1e-6)
DATA = DataConfig.model_construct(
    sensitive=DATASET, unit="trajectory", units=NoisyCount(epsilon=1.0), bounds=None
)


class Store:
    """A hundred trajectories; somebody may step in while they are counted."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None) -> None:
        self.meanwhile = meanwhile

    def iter_transitions(self, _dataset: str, *, unit: str) -> Iterator[Any]:
        assert unit == "trajectory"
        self.meanwhile()
        yield SimpleNamespace(unit_ids=list(range(100)))


def context(url: str, run_id: str, store: Store) -> Any:
    """Return what is around a run, with a ledger of its own."""
    return SimpleNamespace(
        ledger=Ledger(url),
        run_id=run_id,
        fingerprint="f1",
        store=store,
        noise_source=lambda: SeededNoise(3),
    )


def whole_run(url: str, run_id: str, store: Store) -> None:
    """Hold, count with noise, and open the rounds, as each method does."""
    around = context(url, run_id, store)
    with held_budget(DATA, PRIVACY, around):
        units, _ = count_units(DATA, around, relation=NULL)
        plan = RoundPlan(
            units=UnitCount(value=units.value, source="declared"),
            sampling_probability=0.1,
            config=RoundsConfig(rounds=3, spare=1, expected_batch_size=10),
            budget=PrivacyBudget(epsilon=5.0, delta=1e-6, unit="trajectory"),
            mechanism=PrivateRound(
                clip_norm=1.0, noise_multiplier=9.0, sampling_probability=0.1, relation=NULL
            ),
            accountant="pld",
        )
        open_charges(around, charges_of(DATA, around, [(around, plan)]))


def gate_rounds_are_paid_for(folder: Path) -> None:
    """A run that counted gets its rounds, although another one wants what they need meanwhile.

    10 are left, each run needs 6: of it 1 for a count, that is drawn before the rounds are charged.
    """
    url = f"sqlite:///{folder / 'ledger.sqlite'}"
    ledger, refused = Ledger(url), []
    budget = PrivacyBudget(epsilon=10.0, delta=1e-5, unit="trajectory")
    ledger.set_budget(dataset=DATASET, fingerprint="f1", budget=budget)

    def step_in() -> None:
        try:
            whole_run(url, "other", Store())
        except BudgetError as error:
            refused.append(str(error))

    try:
        whole_run(url, "run", Store(step_in))
    except BudgetError as error:
        raise AssertionError(f"refused after it drew: {error}") from error
    charged = {entry.id: entry.epsilon for entry in ledger.entries()}
    assert charged == {"run": 5.0, "run/count": 1.0}, f"charged {charged}"
    assert len(refused) == 1
    assert "has epsilon 4 of 10" in refused[0], refused[0]
    (account,) = ledger.accounts()
    assert account.spent_epsilon == 6.0, f"spent {account.spent_epsilon}"
    assert ledger.holds() == []


def gate_no_more_than_was_held(folder: Path) -> None:
    """Charges of a run add up to no more than it held, however they are cut."""
    ledger = Ledger(f"sqlite:///{folder / 'ledger.sqlite'}")
    budget = PrivacyBudget(epsilon=10.0, delta=1e-5, unit="trajectory")
    ledger.set_budget(dataset=DATASET, fingerprint="f1", budget=budget)
    with held_budget(DATA, PRIVACY, context(str(ledger._url), "run", Store())):
        for part in range(8):
            try:
                release(ledger, f"run/{part}", lambda: 1, epsilon=0.9, hold="run")
            except UnsafeError:
                break
    charged = sum(entry.epsilon for entry in ledger.entries())
    assert charged < 6.0 + 1e-9, f"charged {charged:.3g} of the 6 that were held"
    assert len(ledger.entries()) == 6
