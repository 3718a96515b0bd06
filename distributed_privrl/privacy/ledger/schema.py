"""Tables of the ledger, in SQL that every database speaks.

A budget is an account's; a hold is what a run may still charge to it; a charge is an entry's; a
block of reserved rounds belongs to an entry.
The database itself refuses committed > drawn, drawn > reserved and reserved > the rounds paid for.
"""

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
)


@dataclass(frozen=True)
class Sealed:
    """Bytes that no log of rows shows."""

    value: bytes = field(repr=False)


class SealedBytes(TypeDecorator[Any]):
    """Bytes that are written as they are, and read as `Sealed`."""

    impl = LargeBinary
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Any) -> Sealed | None:
        """Return what was read, sealed."""
        return None if value is None else Sealed(bytes(value))


METADATA = MetaData()
VERSION = 4

SCHEMA_VERSIONS = Table(
    "schema_versions", METADATA, Column("version", Integer, primary_key=True, autoincrement=False)
)

# `revision` changes with whatever is held or charged: two that do so at once are in conflict.
ACCOUNTS = Table(
    "accounts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("dataset", String(255), nullable=False, unique=True),
    Column("fingerprint", String(255), nullable=False, unique=True),
    Column("partition", String(64), nullable=False),
    Column("unit", String(255), nullable=False),
    Column("relation", String(64), nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("revision", Integer, nullable=False),
    CheckConstraint("epsilon > 0", name="budget_epsilon"),
    CheckConstraint("delta >= 0 AND delta < 1", name="budget_delta"),
)

# `epsilon` and `delta` are what the run may still charge; `held_*` were when the hold was opened.
HOLDS = Table(
    "holds",
    METADATA,
    Column("run_id", String(255), primary_key=True),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False, index=True),
    Column("unit", String(255), nullable=False),
    Column("relation", String(64), nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("held_epsilon", Double, nullable=False),
    Column("held_delta", Double, nullable=False),
    Column("units", Integer),
    Column("status", String(16), nullable=False),
    Column("created", String(40), nullable=False),
    Column("made_by", String(255)),
    CheckConstraint("status IN ('open', 'closed')", name="hold_status"),
    CheckConstraint("status = 'open' OR (epsilon = 0 AND delta = 0)", name="hold_closed"),
    CheckConstraint("epsilon >= 0 AND epsilon <= held_epsilon", name="hold_epsilon"),
    CheckConstraint("delta >= 0 AND delta <= held_delta", name="hold_delta"),
)

# By which parts of an account's rows are found in other datasets.
SKETCHES = Table(
    "sketches",
    METADATA,
    Column("account_id", Integer, ForeignKey("accounts.id"), primary_key=True),
    Column("sketch", LargeBinary, nullable=False),
    CheckConstraint("length(sketch) > 0", name="sketch_length"),
)

# Two datasets whose rows look alike, and why their operator says that they share nobody.
DECLARATIONS = Table(
    "declarations",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("dataset", String(255), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("other", String(255), nullable=False),
    Column("other_fingerprint", String(64), nullable=False),
    Column("why", Text, nullable=False),
    Column("created", String(40), nullable=False),
    CheckConstraint("length(why) > 0", name="declaration_why"),
)

# Which key the sketches were made with; the key itself lies in a file, never here.
ROW_KEYS = Table(
    "row_keys",
    METADATA,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("digest", String(64), nullable=False),
    CheckConstraint("id = 1", name="row_key_one"),
)

# `epsilon` and `delta` are charged now; `held_*` were when the entry was opened. `secret` is there
# while the entry is open, and read by `entry_secrets` alone.
ENTRIES = Table(
    "entries",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False, index=True),
    Column("hold", String(255), ForeignKey("holds.run_id"), index=True),
    Column("unit", String(255), nullable=False),
    Column("relation", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("max_rounds", Integer, nullable=False),
    Column("reserved_rounds", Integer, nullable=False),
    Column("drawn_rounds", Integer, nullable=False),
    Column("committed_rounds", Integer, nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    Column("held_epsilon", Double, nullable=False),
    Column("held_delta", Double, nullable=False),
    Column("event", Text, nullable=False),
    Column("answer", Text),
    Column("units", Integer),
    Column("certificate_digest", String(64)),
    Column("status", String(16), nullable=False),
    Column("created", String(40), nullable=False),
    Column("made_by", String(255)),
    Column("secret", SealedBytes),
    CheckConstraint("kind IN ('rounds', 'release')", name="entry_kind"),
    CheckConstraint("status IN ('open', 'settled')", name="entry_status"),
    CheckConstraint("committed_rounds >= 0", name="entry_committed"),
    CheckConstraint("committed_rounds <= drawn_rounds", name="entry_drawn"),
    CheckConstraint("drawn_rounds <= reserved_rounds", name="entry_reserved"),
    CheckConstraint("reserved_rounds <= max_rounds", name="entry_paid"),
    CheckConstraint("epsilon >= 0 AND epsilon <= held_epsilon", name="entry_epsilon"),
    CheckConstraint("delta >= 0 AND delta <= held_delta", name="entry_delta"),
    CheckConstraint("(status = 'open') = (secret IS NOT NULL)", name="entry_secret"),
)

SHOWN_ENTRIES = tuple(column for column in ENTRIES.c if column is not ENTRIES.c.secret)
"""What is read of an entry, but for its secret."""

# Of what is released beside an entry's certificate: datasets with certificates of their own.
BESIDE = Table(
    "certificates_beside",
    METADATA,
    Column("entry_id", String(255), ForeignKey("entries.id"), primary_key=True),
    Column("output", String(255), primary_key=True),
    Column("certificate_digest", String(64), nullable=False),
    CheckConstraint("length(certificate_digest) = 64", name="beside_digest"),
)

BLOCKS = Table(
    "blocks",
    METADATA,
    Column("nonce", String(255), primary_key=True),
    Column("entry_id", String(255), ForeignKey("entries.id"), nullable=False, index=True),
    Column("first_round", Integer, nullable=False),
    Column("rounds", Integer, nullable=False),
    Column("drawn", Integer, nullable=False),
    Column("committed", Integer, nullable=False),
    Column("abandoned", Boolean, nullable=False),
    CheckConstraint("rounds > 0", name="block_rounds"),
    CheckConstraint("committed >= 0 AND committed <= drawn", name="block_drawn"),
    CheckConstraint("drawn <= rounds", name="block_reserved"),
)
