"""Tables of the ledger, in SQL that every database speaks.

A budget is an account's; a charge is an entry's; a block of reserved rounds belongs to an entry.
The database itself refuses committed > drawn, drawn > reserved and reserved > the rounds paid for.
"""

from sqlalchemy import (
    Boolean,
    CheckConstraint,
    Column,
    Double,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

METADATA = MetaData()
VERSION = 2

SCHEMA_VERSIONS = Table(
    "schema_versions", METADATA, Column("version", Integer, primary_key=True, autoincrement=False)
)

ACCOUNTS = Table(
    "accounts",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("dataset", String(255), nullable=False, unique=True),
    Column("fingerprint", String(255), nullable=False, unique=True),
    Column("unit", String(255), nullable=False),
    Column("relation", String(64), nullable=False),
    Column("epsilon", Double, nullable=False),
    Column("delta", Double, nullable=False),
    CheckConstraint("epsilon > 0", name="budget_epsilon"),
    CheckConstraint("delta >= 0 AND delta < 1", name="budget_delta"),
)

# `epsilon` and `delta` are charged now; `held_*` were when the entry was opened.
ENTRIES = Table(
    "entries",
    METADATA,
    Column("id", String(255), primary_key=True),
    Column("account_id", Integer, ForeignKey("accounts.id"), nullable=False, index=True),
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
    CheckConstraint("kind IN ('rounds', 'release')", name="entry_kind"),
    CheckConstraint("status IN ('open', 'settled')", name="entry_status"),
    CheckConstraint("committed_rounds >= 0", name="entry_committed"),
    CheckConstraint("committed_rounds <= drawn_rounds", name="entry_drawn"),
    CheckConstraint("drawn_rounds <= reserved_rounds", name="entry_reserved"),
    CheckConstraint("reserved_rounds <= max_rounds", name="entry_paid"),
    CheckConstraint("epsilon >= 0 AND epsilon <= held_epsilon", name="entry_epsilon"),
    CheckConstraint("delta >= 0 AND delta <= held_delta", name="entry_delta"),
)

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
