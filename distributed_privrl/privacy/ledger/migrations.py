"""Ledgers of earlier versions become ledgers of this one, forward and in one transaction."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection, text, update

from distributed_privrl.privacy.ledger.schema import SCHEMA_VERSIONS, VERSION

STEPS: Mapping[int, Sequence[str]] = {
    3: (  # who made a hold or a charge: nobody knows of earlier ones
        "ALTER TABLE holds ADD COLUMN made_by VARCHAR(255)",
        "ALTER TABLE entries ADD COLUMN made_by VARCHAR(255)",
    ),
}
"""What leads from a version to the next. Versions 1 and 2 did not store which rows share a unit,
nor a run's secret: nothing can be said of what they charged, and no step leads on from them."""


def migrated(connection: Connection, version: int) -> bool:
    """Bring a ledger forward to this version, unless no steps lead there; say whether it is.

    Args:
        connection: of the transaction in which all steps are taken, or none.
        version: of the ledger.
    """
    steps = range(version, VERSION)
    if not steps or any(step not in STEPS for step in steps):
        return False
    for step in steps:
        for statement in STEPS[step]:
            connection.execute(text(statement))
    connection.execute(update(SCHEMA_VERSIONS).values(version=VERSION))
    return True
