"""A table as a user would bring it: rows, a schema, and bounds that were written down by hand."""

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.tabular import column_names

Relation = Callable[[pd.DataFrame], float]


@dataclass(frozen=True, kw_only=True)
class SourceTable:
    """One table, what its columns mean, and what is known of them without a look at the rows.

    Args:
        name: of the table.
        frame: makes the rows; its argument asks for a small part, for tests.
        schema: of the product's import.
        bounds: of the product's ``data.bounds``; public knowledge, never found in the rows.
        units: people (planes, stays) as published; the small part has as many as it has.
        unit_rows: rows of one unit that a method may count, a public choice.
        flags: numbers of an observation that are 0 or 1.
        one_hot: categories of an observation, and the columns of 0 and 1 that hold each.
        reward_levels: values of a reward that has few.
        relations: what holds in the table, by name; a function of rows as `tables.rows` reads them.
    """

    name: str
    frame: Callable[[bool], pd.DataFrame]
    schema: Mapping[str, Any]
    bounds: Mapping[str, Any]
    units: int
    unit_rows: int
    flags: Sequence[str] = ()
    one_hot: Mapping[str, Sequence[str]] = field(default_factory=dict)
    reward_levels: Sequence[float] = ()
    relations: Mapping[str, Relation] = field(default_factory=dict)

    @property
    def unit(self) -> str:
        """The column that says whose a row is."""
        return str(self.schema["columns"]["unit"])

    @property
    def observation(self) -> list[str]:
        """The columns of an observation."""
        return column_names(self.schema["columns"]["observation"])

    @property
    def action(self) -> list[str]:
        """The columns of an action."""
        return column_names(self.schema["columns"]["action"])

    def table(self, quick: bool = False) -> pd.DataFrame:
        """Return the rows, (N, columns of the schema)."""
        return self.frame(quick)

    def import_into(self, store: DatasetStore, dataset: str, *, quick: bool = False) -> None:
        """Write the table as a new dataset, by the product's import.

        Args:
            store: where it goes.
            dataset: its id.
            quick: a small part.
        """
        schema = validate(ImportSchema, dict(self.schema), source=f"schema of {self.name}")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{self.name}.parquet"
            self.table(quick).to_parquet(file)
            import_file(file, schema, store, dataset)

    def write_bounds(self, file: Path) -> None:
        """Write the bounds as a file for ``data.bounds``."""
        import yaml

        write_atomically(file, yaml.safe_dump(dict(self.bounds)))


def package_file(package: str, path: str) -> Path:
    """Return a file of an installed package, which is not imported.

    Raises:
        ConfigError: it is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"the table comes with {package}: pip install '.[tables]'")
    return Path(spec.submodule_search_locations[0]) / path


def some_units(frame: pd.DataFrame, unit: str, count: int) -> pd.DataFrame:
    """Return the rows of ``count`` units, evenly spaced in the order of their names."""
    names = np.sort(frame[unit].unique())
    chosen = names[np.linspace(0, len(names) - 1, min(count, len(names))).astype(np.int64)]
    return frame[frame[unit].isin(chosen)].reset_index(drop=True)


def last_of_each(keys: pd.Series) -> NDArray[np.bool_]:
    """Return which rows are the last of their key, (N,), in rows that are in order."""
    return ~keys.duplicated(keep="last").to_numpy()
