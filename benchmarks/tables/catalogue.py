"""All tables by name."""

from collections.abc import Mapping

from benchmarks.tables.fleet import FLEET, FLEET_PART
from benchmarks.tables.panels import ETHNICITIES, JOBS, LABOUR, RESPIRATORY, VISITS_TABLE, WAGES
from benchmarks.tables.simulated import EVAL_UMAZE, HALFCHEETAH, MAZES, SEPSIS, UMAZE_ROWS
from benchmarks.tables.source import BenchmarkTable

WAGES_LASTING = WAGES.with_lasting("school", *ETHNICITIES)
VISITS_LASTING = VISITS_TABLE.with_lasting("female")
_ALL: tuple[BenchmarkTable, ...] = (
    FLEET,
    FLEET_PART,
    SEPSIS,
    VISITS_TABLE,
    WAGES,
    LABOUR,
    JOBS,
    VISITS_LASTING,
    WAGES_LASTING,
    RESPIRATORY,
    *MAZES,
    UMAZE_ROWS,
    EVAL_UMAZE,
    HALFCHEETAH,
)
TABLES: Mapping[str, BenchmarkTable] = {table.name: table for table in _ALL}
_ON_DEMAND = (
    EVAL_UMAZE.name,
    FLEET_PART.name,
    HALFCHEETAH.name,
    JOBS.name,
    LABOUR.name,
    UMAZE_ROWS.name,
    VISITS_LASTING.name,
    WAGES_LASTING.name,
)
DEFAULT = tuple(name for name in TABLES if name not in _ON_DEMAND)
"""A part of the fleet is for methods that take long for each plane; HalfCheetah's recording trains
a policy first, tens of minutes; a maze whose single steps are people's is for methods of rows; men
with ten rows each, and people with seven, are for those of trajectories; tables whose schema
declares what people keep stand beside the same ones without. All are made where they are named, and
so is the public maze that settings are chosen on."""
