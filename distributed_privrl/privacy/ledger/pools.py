"""Which trajectories of each unit runs may read, where one run's draws must be no other run's.

The guarantee of stable prefixes (`privacy.sparse_vector`) holds for trajectories that nothing else
reads: what a second release tells of a trajectory that was drawn before is no part of the product
that accounting composes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from sqlalchemy import Connection, select

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.privacy.events import POLICIES, STABLE_PREFIX, TRAJECTORIES
from distributed_privrl.privacy.ledger.records import Account, Charge
from distributed_privrl.privacy.ledger.schema import ENTRIES
from distributed_privrl.privacy.schedules import charged_events
from distributed_privrl.privacy.units import Relation


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What an entry says that its run may read of each unit.

    Args:
        first: first trajectory.
        stop: the one after the last; None: whatever follows.
        draws: whether single trajectories are drawn, for stable prefixes.
        policies: digest of the policies that the run hosts.
    """

    first: int
    stop: int | None
    draws: bool
    policies: str | None

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> Self:
        """Return what an entry's event says; one that does not say reads all."""
        first, stop = event.get(TRAJECTORIES, (0, None))
        derivations = [one.get("derivation", {}) for one in charged_events(event)]
        draws = any(one.get("mechanism") == STABLE_PREFIX for one in derivations)
        return cls(first=first, stop=stop, draws=draws, policies=event.get(POLICIES))

    def overlaps(self, other: "Reading") -> bool:
        """Say whether both may read the same trajectory."""
        ends_later = self.stop is None or other.first < self.stop
        return ends_later and (other.stop is None or self.first < other.stop)

    def __str__(self) -> str:
        """Return the trajectories in words."""
        if self.stop is None:
            return f"trajectories {self.first} and later"
        return f"trajectories {self.first} to {self.stop - 1}"


def check_pools(connection: Connection, account: Account, request: Charge) -> None:
    """Refuse what would read trajectories that another entry draws, or draw those it reads.

    Every entry of the account counts, open ones too, whatever was drawn.

    Raises:
        UnsafeError: they overlap, or another filter of the dataset hosts other policies.
    """
    if Relation(request.relation) is not Relation.POLICY_LEVEL:
        return
    rows = connection.execute(
        select(ENTRIES.c.id, ENTRIES.c.event).where(ENTRIES.c.account_id == account.id)
    )
    held = {name: Reading.of(json.loads(event)) for name, event in rows.all()}
    asked = Reading.of(request.event)
    for name, other in held.items():
        if not (asked.draws or other.draws):
            continue
        if asked.overlaps(other):
            verb = "draws from" if other.draws else "reads"
            raise UnsafeError(
                f"{name} {verb} {other} of each {account.unit} of {account.dataset}, this run would"
                f" use {asked}: what a filter draws from is for it alone; {_advice(asked, held)}"
            )
        if asked.draws and other.draws and asked.policies != other.policies:
            raise UnsafeError(
                f"{name} hosted other policies for {account.dataset}: those that collected it are"
                " the same for every run; put them back"
            )


def _advice(asked: Reading, held: Mapping[str, Reading]) -> str:
    if asked.draws and any(one.stop is None for one in held.values()):
        return "no trajectory is left for another filter: collect a dataset anew under another id"
    free = max(one.stop or 0 for one in held.values() if one.draws)
    return (
        f"set filter.first_trajectory={free}, or with filter.share=0"
        f" training.skip_trajectories={free}"
    )
