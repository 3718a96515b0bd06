"""A ledger with a budget of epsilon 10."""

from pathlib import Path

import pytest

from distributed_privrl.privacy.ledger import Ledger
from tests.worlds.ledgers import set_budget, url_of


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    ledger = Ledger(url_of(tmp_path))
    set_budget(ledger)
    return ledger
