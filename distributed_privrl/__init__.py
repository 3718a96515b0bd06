"""Differentially private offline reinforcement learning, with an epsilon that is true.

Example:
    >>> import distributed_privrl as pr
    >>> pr.PrivacyBudget(epsilon=1.0, delta=1e-6, unit="trajectory").relation.value
    'replace_with_null'
"""

import importlib
from typing import Any

from distributed_privrl.core.threads import cap_threads

cap_threads()

_HOMES = {
    "BudgetError": "core.errors",
    "Certificate": "privacy.certificate",
    "ConfigError": "core.errors",
    "DatasetStore": "data.store",
    "Ledger": "privacy.ledger",
    "PrivRLError": "core.errors",
    "PrivacyBudget": "privacy.units",
    "UnsafeError": "core.errors",
    "collect": "collection.recipes",
    "from_table": "data.importing",
    "load": "data.loaded",
    "load_config": "experiments.registry",
    "plan_run": "experiments.registry",
    "run": "runtime.launch",
    "verify_certificate": "privacy.verification",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: `import distributed_privrl` stays cheap."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
