"""All tables by name."""

from collections.abc import Mapping

from benchmarks.tables.fleet import FLEET
from benchmarks.tables.panels import RESPIRATORY, VISITS_TABLE, WAGES
from benchmarks.tables.simulated import HALFCHEETAH, MAZES, SEPSIS, UMAZE_ROWS
from benchmarks.tables.source import BenchmarkTable

_ALL: tuple[BenchmarkTable, ...] = (
    FLEET,
    SEPSIS,
    VISITS_TABLE,
    WAGES,
    RESPIRATORY,
    *MAZES,
    UMAZE_ROWS,
    HALFCHEETAH,
)
TABLES: Mapping[str, BenchmarkTable] = {table.name: table for table in _ALL}
DEFAULT = tuple(name for name in TABLES if name not in (HALFCHEETAH.name, UMAZE_ROWS.name))
"""HalfCheetah's recording trains a policy first, tens of minutes; a maze whose single steps are
people's is for methods of rows. Both are made where they are named."""
