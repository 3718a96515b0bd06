"""A table as a user would bring it: rows, a schema, and bounds that were written down by hand."""

import importlib.util
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import yaml
from numpy.typing import NDArray

from benchmarks.tables.rows import Naming
from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.data.declared import column_names
from distributed_privrl.data.importing import import_file
from distributed_privrl.data.named_rows import Rows
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments.mazes import Maze

Relation = Callable[[Rows], float]


@dataclass(frozen=True, kw_only=True)
class BenchmarkTable(ABC):
    """One table and what is known of it without a look at its rows.

    Args:
        name: of the table.
        bounds: of the product's ``data.bounds``: public knowledge, never found in the rows.
        unit_rows: rows of one unit that count at most (``data.max_length``), a public choice.
        rows_per_unit: about how many rows a unit usually has, as anyone would say who knows what
            the table is about (``model.rows_per_unit`` of `marginals`); each table says why.
        value_steps: how finely a column's values lie, where `naming` does not say it: its whole
            numbers, its flags and the columns of its categories have a step of 1.
        longest: steps of a trajectory at most, where a unit has several (default: ``unit_rows``).
        cells: columns of the cells among which rare ones are counted, and public cuts of numbers.
        reward_levels: values of a reward that has few.
        relations: what holds in the table, by name.
        judge: what agents that learn from the rows are judged by, if there is a simulator.
        maze: that the rows are from, if they are from one.
        public: tables of the same kind that may be public where this one is sensitive.
    """

    name: str
    bounds: Mapping[str, Any]
    unit_rows: int
    rows_per_unit: int
    cells: Mapping[str, Sequence[float]]
    value_steps: Mapping[str, float] = field(default_factory=dict)
    longest: int | None = None
    reward_levels: Sequence[float] = ()
    relations: Mapping[str, Relation] = field(default_factory=dict)
    judge: Literal["exact", "agents"] | None = None
    maze: Maze | None = None
    public: Sequence[str] = ()

    @property
    @abstractmethod
    def unit(self) -> str:
        """What one person contributes, as ``data.unit`` says it."""

    @property
    @abstractmethod
    def naming(self) -> Naming:
        """How the columns of the stored rows are called."""

    @property
    def environment(self) -> str | None:
        """Gymnasium id of the simulator, if there is one."""
        return None

    @property
    def trajectories_per_unit(self) -> int | None:
        """1 where the schema says that all rows of a unit are one trajectory; None: it does not."""
        return None

    @abstractmethod
    def import_into(self, store: DatasetStore, dataset: str, *, quick: bool = False) -> None:
        """Write the table as a new dataset.

        Args:
            store: where it goes.
            dataset: its id.
            quick: a small part, for tests.
        """

    def stepped_bounds(self) -> dict[str, Any]:
        """Return the bounds with the step of every column that has one."""
        naming, bounds = self.naming, dict(self.bounds)
        one_hot = (name for names in naming.one_hot.values() for name in names)
        steps = dict.fromkeys([*naming.whole, *naming.flags, *one_hot], 1.0)
        steps |= self.value_steps
        observation = [steps.get(name, 0.0) for name in naming.observation]
        if any(observation):
            bounds["observation"] = {**bounds["observation"], "step": observation}
        if "reward" in steps:
            low, high = bounds["reward"]
            bounds["reward"] = {"low": low, "high": high, "step": steps["reward"]}
        return bounds

    def write_bounds(self, file: Path) -> None:
        """Write the bounds as a file for ``data.bounds``."""
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(file, yaml.safe_dump(self.stepped_bounds()))


@dataclass(frozen=True, kw_only=True)
class SourceTable(BenchmarkTable):
    """Rows that somebody recorded, imported by a schema.

    Args:
        frame: makes the rows; its argument asks for a small part.
        schema: of the product's import.
        whole: see `Naming`.
        flags: see `Naming`.
        one_hot: see `Naming`.
    """

    frame: Callable[[bool], pd.DataFrame]
    schema: Mapping[str, Any]
    whole: Sequence[str] = ()
    flags: Sequence[str] = ()
    one_hot: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def with_lasting(self, *columns: str) -> "SourceTable":
        """Return the table under a name of its own, some of whose columns are declared lasting."""
        kinds = {name: {"type": "number", "lasting": True} for name in columns}
        return replace(self, name=f"{self.name}_lasting", schema={**self.schema, "kinds": kinds})

    @property
    def unit(self) -> str:
        """The column that says whose a row is."""
        return str(self.schema["columns"]["unit"])

    @property
    def trajectories_per_unit(self) -> int | None:
        """1 where both are one column, as ``privrl init`` drafts it."""
        columns = self.schema["columns"]
        return 1 if columns["trajectory"] == columns["unit"] else None

    @property
    def naming(self) -> Naming:
        """The schema's names."""
        columns = self.schema["columns"]
        return Naming(
            observation=column_names(columns["observation"]),
            action=column_names(columns["action"]),
            whole=self.whole,
            flags=self.flags,
            one_hot=self.one_hot,
        )

    def table(self, quick: bool = False) -> pd.DataFrame:
        """Return the rows, (N, columns of the schema and others)."""
        return self.frame(quick)

    def import_into(self, store: DatasetStore, dataset: str, *, quick: bool = False) -> None:
        """Write the table as a new dataset, by the product's import."""
        schema = validate(ImportSchema, dict(self.schema), source=f"schema of {self.name}")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{self.name}.parquet"
            self.table(quick).to_parquet(file)
            import_file(file, schema, store, dataset)


@dataclass(frozen=True, kw_only=True)
class RecordedTable(BenchmarkTable):
    """Rows recorded in a simulator, by a recipe of ``privrl collect``.

    Args:
        recipe: its name.
        simulator: Gymnasium id of the environment.
        columns: names of the rows' columns.
        recorded_unit: ``trajectory``, or what the recipe calls its units.
        options: of the recipe.
        quick_options: those that differ in the small part.
        steps: how many are recorded, and how many in the small part; None: as the recipe says.
        seed: of the recording.
    """

    recipe: str
    simulator: str
    columns: Naming
    recorded_unit: str
    options: Mapping[str, Any] = field(default_factory=dict)
    quick_options: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[int, int] | None = None
    seed: int = 1

    @property
    def unit(self) -> str:
        """As the recipe calls it."""
        return self.recorded_unit

    @property
    def naming(self) -> Naming:
        """The given names."""
        return self.columns

    @property
    def environment(self) -> str | None:
        """The simulator."""
        return self.simulator

    def import_into(self, store: DatasetStore, dataset: str, *, quick: bool = False) -> None:
        """Record the rows as a new dataset."""
        collect(
            self.recipe,
            dataset=dataset,
            store=store,
            steps=None if self.steps is None else self.steps[quick],
            seed=self.seed,
            options={**self.options, **(self.quick_options if quick else {})},
        )


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
