"""Stays in which single patients stand out, released ones in which nobody does, and a value."""

from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig
from distributed_privrl.methods.policy_value.config import PolicyValueConfig
from tests.gates.leak_secrets import Secrets
from tests.worlds.certified import certify
from tests.worlds.overrides import changed, parsed
from tests.worlds.rarities import DATASET, DECLARED, SPACES, planted, stays
from tests.worlds.world import World

MADE = "made/stays-v0"
RETURNS = (-9.0, 9.0)


class JudgedRarities(World):
    """Both kinds of stays, a ledger, and a place for runs of `policy_value`."""

    dataset = DATASET

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.recorded = stays()
        for name, rows in ((DATASET, self.recorded), (MADE, stays(4, rare=False))):
            self.store.write_trajectories(
                name, rows, unit_column="patient", layout="packed", **SPACES
            )
        certify(self.store, MADE)

    def config(self, **changes: Any) -> RunConfig:
        """Return the configuration of a run."""
        values = {
            "method": "policy_value",
            "data": {"sensitive": DATASET, "unit": "patient", "units": DECLARED},
            "privacy": {"epsilon": 2.0},
            "model": {"release": MADE, "returns": list(RETURNS), "horizon": 8},
            "training": {"trainer": "bc", "steps": 20},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parsed(changed(values, changes), PolicyValueConfig)

    def secrets(self, rows: Any, released: Any, figures: tuple[float, ...]) -> Secrets:
        """Return what must not be found; released rows excuse the numbers that they hold.

        Args:
            rows: table of sensitive ones.
            released: of released ones.
            figures: of the sensitive stays as wholes.
        """
        return Secrets(
            rows=(rows,), public=(released,), figures=figures, planted=planted(self.recorded)
        )
