"""A stored dataset for programs: as a data frame, an Arrow table, or what another library takes."""

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError, MissingExtraError
from distributed_privrl.data.exporting import named_chunks
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import TRAJECTORY, TRANSITION, Transitions

if TYPE_CHECKING:
    import pandas as pd


def load(dataset: str, *, store: DatasetStore | None = None) -> "LoadedDataset":
    """Return a stored dataset; its rows are read when a table of them is asked for.

    Args:
        dataset: its id.
        store: where it lies (default: the folder of all datasets).

    Raises:
        ConfigError: no such dataset.

    Privacy: rows of a sensitive dataset are its owner's, in the owner's own program: nothing here
        adds noise or charges an event.
    """
    store = DatasetStore() if store is None else store
    return LoadedDataset(store=store, info=store.info(dataset))


@dataclass(frozen=True, kw_only=True, eq=False)
class LoadedDataset:
    """A stored dataset, a row a transition; its columns are those of ``privrl export``.

    Polars, DuckDB and whatever else speaks Arrow's stream protocol takes it as it is.

    Args:
        store: where it lies.
        info: what is known of it without its rows.
    """

    store: DatasetStore
    info: DatasetInfo

    def to_pandas(self, *, rows_only: bool = False) -> "pd.DataFrame":
        """Return the rows as a data frame, with the names and values of the table's schema.

        Args:
            rows_only: leave out next observations and ends, but those that are columns of the
                table.
        """
        import pandas as pd

        chunks = named_chunks(self.store, self.info.id, rows_only=rows_only)
        return pd.concat([pd.DataFrame(chunk) for chunk in chunks], ignore_index=True)

    def to_arrow(self, *, rows_only: bool = False) -> Any:
        """Return the rows as a ``pyarrow.Table``; see `to_pandas`."""
        import pyarrow as pa

        return pa.Table.from_pandas(self.to_pandas(rows_only=rows_only), preserve_index=False)

    def to_polars(self, *, rows_only: bool = False) -> Any:
        """Return the rows as a ``polars.DataFrame``; see `to_pandas`.

        Raises:
            MissingExtraError: Polars is not installed (extra ``polars``).
        """
        return _library("polars", extra="polars").from_arrow(self.to_arrow(rows_only=rows_only))

    def to_minari(self) -> Any:
        """Return the ``minari.MinariDataset`` of the files; packed layouts say so in it."""
        from minari import MinariDataset

        return MinariDataset(self.store.folder(self.info.id) / "data")

    def to_d3rlpy(self) -> Any:
        """Return the rows as d3rlpy's ``MDPDataset``, whose transitions are exactly the rows.

        d3rlpy finds a successor in the next row of an episode. So a trajectory that is truncated
        gets a row more, with its final observation, which d3rlpy never learns from; and each
        independent transition is an episode of its own.

        Raises:
            ConfigError: nothing follows the rows, or spaces that d3rlpy does not know.
            MissingExtraError: d3rlpy is not installed (extra ``parity``).
        """
        d3rlpy = _library("d3rlpy", extra="parity")
        space = self.info.action_space
        if not self.info.has_successors:
            raise ConfigError(f"nothing follows the rows of {self.info.id}: agents need successors")
        if isinstance(space, MultiDiscrete):
            raise ConfigError(f"d3rlpy knows no actions of several categories: {space}")
        whole = self.info.kind == "trajectories"
        rows = self.store.read_transitions(self.info.id, unit=TRAJECTORY if whole else TRANSITION)
        arrays = _with_final_observations(rows)
        about = {"action_space": d3rlpy.ActionSpace.CONTINUOUS}
        if isinstance(space, Discrete):
            arrays["actions"] = (arrays["actions"] - int(space.start))[:, None]
            about = {"action_space": d3rlpy.ActionSpace.DISCRETE, "action_size": int(space.n)}
        return d3rlpy.dataset.MDPDataset(**arrays, **about)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """Return the rows by Arrow's stream protocol."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)


def _with_final_observations(rows: Transitions) -> dict[str, NDArray[Any]]:
    """Return rows as d3rlpy's arrays, with a row after each that is followed by nothing it knows.

    Args:
        rows: N transitions, trajectory after trajectory; ``unit_ids`` tell these apart.
    """
    last = np.append(rows.unit_ids[1:] != rows.unit_ids[:-1], True)
    added = last & ~rows.terminated
    source = np.repeat(np.arange(len(rows)), 1 + added)
    final = np.append(source[1:] == source[:-1], False)
    is_added = np.append(False, final[:-1])
    observations = rows.observations[source]
    observations[is_added] = rows.next_observations[added]
    rewards = np.where(is_added, 0, rows.rewards[source]).astype(np.float32)
    return {
        "observations": observations.reshape(len(source), -1),
        "actions": rows.actions[source],
        "rewards": rewards,
        "terminals": (rows.terminated[source] & last[source]).astype(np.float32),
        "timeouts": is_added.astype(np.float32),
    }


def _library(name: str, *, extra: str) -> Any:
    """Import a library that nothing else here needs.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise MissingExtraError(name, extra) from error
