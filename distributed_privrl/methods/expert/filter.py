"""The filter: draws trajectories of experts and releases their stable prefixes.

Reference: paper 004, algorithm 2, with the draws and the accounting of `privacy.sparse_vector`.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from randomgen import AESCounter

from distributed_privrl.core.errors import BudgetError, ConfigError, StorageError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.hosting import HostSpec
from distributed_privrl.methods.expert.pools import ExpertPools, padded
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.sparse_vector import StablePrefixes

DRAWS_FILE = "draws.json"
COUNTS_FILE = "prefix_counts.json"
POLICIES_COLLECTED_THE_DATA = "hosted_policies_collected_the_data"
POOL_TRAJECTORIES_ARE_FRESH = "release_pool_trajectories_are_fresh_draws_used_by_no_other_run"
PUBLIC_MINIMUM_PROBABILITY = "minimum_probability_max_length_and_pool_sizes_are_public"
FILTER_ASSUMPTIONS = (
    POLICIES_COLLECTED_THE_DATA,
    POOL_TRAJECTORIES_ARE_FRESH,
    PUBLIC_MINIMUM_PROBABILITY,
)
"""What the guarantee of a filter assumes beside the noise source's own assumptions."""

_COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One draw: private.

    Args:
        index: of the draw among all that were started.
        expert: number of the expert among all; None: there is none to draw.
        number: how often that expert was drawn before.
    """

    index: int
    expert: int | None
    number: int


class SecretDraws:
    """The order in which experts are drawn: secret, and the same after a crash.

    Experts are drawn independently and uniformly, from AES in counter mode under a key of the
    operating system's entropy. Key and number of draws started lie in one file of the run's private
    folder, written before each draw: a draw that a crash undid is never made again, so that no
    trajectory is used twice. Once the run has settled, `forget_order` drops the key.

    Args:
        folder: the run's private folder.
        draws: that are paid for; there are no more.
        insecure_key: seeds the order in tests; the certificate is then invalid.

    Raises:
        StorageError: the file cannot be written, or is damaged.
    """

    def __init__(self, folder: Path, *, draws: int, insecure_key: int | None = None) -> None:
        self._path, self._draws = folder / DRAWS_FILE, draws
        if self._path.exists():
            self._key, self._started = self._read()
            return
        fresh = os.urandom(16)
        if insecure_key is not None:
            fresh = hashlib.sha256(f"{insecure_key}/draws".encode()).digest()[:16]
        self._key, self._started = fresh, 0

    @property
    def started(self) -> int:
        """The number of draws that were started, also those that a crash undid."""
        return self._started

    def start(self, live: NDArray[np.int64]) -> Draw:
        """Start the next draw among the experts ``live`` (E,), the same ones at every draw.

        Raises:
            BudgetError: all draws that are paid for were started.
            UnsafeError: the order was forgotten.
            StorageError: the file cannot be written; nothing was drawn.
        """
        index = self._started
        if index >= self._draws:
            raise BudgetError(
                f"all {self._draws} draws that are paid for were started: raise filter.spare"
            )
        if self._key is None:
            raise UnsafeError(f"{self._path} has no key, the run has settled: start a new run")
        folder = self._path.parent
        with storage_errors(f"write {folder}"):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = {"key": self._key.hex(), "started": index + 1}
        write_atomically(self._path, json.dumps(content), mode=0o600)
        self._started = index + 1
        if len(live) == 0:
            return Draw(index=index, expert=None, number=0)
        order = self.order(live)
        before = int(np.count_nonzero(order[:index] == order[index]))
        return Draw(index=index, expert=int(order[index]), number=before)

    def order(self, live: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the experts of all draws, (T,), among those that are ``live``: private."""
        assert self._key is not None
        generator = np.random.Generator(AESCounter(key=int.from_bytes(self._key, "big")))
        return live[generator.integers(len(live), size=self._draws)]

    def _read(self) -> tuple[bytes | None, int]:
        try:
            with storage_errors(f"read {self._path}"):
                content = json.loads(self._path.read_text())
            key = None if set(content) == {"started"} else bytes.fromhex(content["key"])
            return key, int(content["started"])
        except (ValueError, KeyError, TypeError) as error:
            raise StorageError(
                f"{self._path} is damaged, and which trajectories were used is not known: start a"
                " new run"
            ) from error


def forget_order(private: Path) -> None:
    """Keep the number of draws alone, once no more will be made; who was drawn is then unknown.

    Args:
        private: the run's private folder.

    Raises:
        StorageError: the file cannot be read or written.
    """
    path = private / DRAWS_FILE
    if path.exists():
        with storage_errors(f"read {path}"):
            started = int(json.loads(path.read_text())["started"])
        write_atomically(path, json.dumps({"started": started}), mode=0o600)


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """What the filter needs beside the hosts: public facts, and where its secrets lie.

    Args:
        prefixes: the calibrated mechanism.
        private: the run's private folder: the order of draws, and raw counts for the owner.
        insecure_key: seeds the order of draws in tests.
    """

    prefixes: StablePrefixes
    private: Path
    insecure_key: int | None = None


class SvtFilter:
    """Draws an expert and one of its trajectories a step, and releases its stable prefix.

    Privacy:
        Unit: an expert. Relation: ``policy_level``. Sensitivity: see `ExpertHost` and
        `StablePrefixes`. Event: ``settings.prefixes.draw_events()`` a call of `step`. What is kept
        and returned is released: the states, actions and rewards of stable prefixes, with the state
        after each, and how many steps each draw released; nothing of the step after a prefix, and
        nothing of whose trajectory it is. A draw whose expert's pool is used up, or for which there
        is no expert, releases nothing; hosts are asked and noise is drawn all the same, always for
        ``max_length`` steps. Its process reads the trajectories of drawn experts itself; hosts are
        told states and actions, not whose. Raw counts and the order of draws stay in the run's
        private folder.

    Args:
        settings: see there.

    Reference: paper 004, algorithm 2.
    """

    def __init__(self, settings: FilterSettings) -> None:
        self.settings = settings
        self._order = SecretDraws(
            settings.private,
            draws=settings.prefixes.draws,
            insecure_key=settings.insecure_key,
        )
        self._released: Trajectories | None = None
        self._lengths: list[int] = []
        self._live: NDArray[np.int64] | None = None
        self._pools: ExpertPools | None = None

    def step(self, index: int, workers: WorkerGroup, noise: NoiseSource | None) -> None:
        """Draw a trajectory and add its stable prefix to what is released.

        Args:
            index: 0 for the first.
            workers: `ExpertHost` group, in the order of the experts.
            noise: draws the noise of threshold and queries.

        Raises:
            ConfigError: steps out of order.
            UnsafeError: there is no noise.
            BudgetError: all draws that are paid for were started.
        """
        if noise is None:
            raise UnsafeError("stable prefixes need noise: set privacy.epsilon, or filter.share=0")
        if index != len(self._lengths):
            raise ConfigError(f"index must be {len(self._lengths)}, got {index}")
        if self._live is None:
            self._live = np.flatnonzero(np.concatenate(workers.call("describe")))
        draw = self._order.start(self._live)
        if self._pools is None:
            self._pools = self._read(self._live, workers)
        drawn = self._pools.drawn(draw.expert, draw.number)
        steps = self._stable_steps(draw, drawn, workers, noise)
        self._lengths.append(steps)
        if steps:
            self._add(_ended(drawn.cut(np.array([steps]))))

    def _read(self, live: NDArray[np.int64], workers: WorkerGroup) -> ExpertPools:
        """Return the pools of all experts that the run draws; whose they are reaches no host."""
        spec: HostSpec = workers.call("built_from")[0]
        units = np.concatenate(workers.call("units"))
        drawn = np.unique(self._order.order(live)) if len(live) else live
        return ExpertPools(
            spec.pool, drawn, units[drawn], actions=spec.actions, release_pool=spec.release_pool
        )

    def _stable_steps(
        self, draw: Draw, drawn: Trajectories, workers: WorkerGroup, noise: NoiseSource
    ) -> int:
        """Return how many steps are released; as much work whatever was drawn."""
        prefixes, steps = self.settings.prefixes, len(drawn.actions)
        states, actions = padded(drawn, prefixes.max_length)
        counts = np.sum(
            workers.call("prefix_counts", {"observations": states, "actions": actions}), axis=0
        )
        stable = min(prefixes.stable_steps(counts, noise, tag=draw.index), steps)
        self._keep_counts(draw, counts[:steps], stable)
        return stable

    def _add(self, prefix: Trajectories) -> None:
        parts = [prefix] if self._released is None else [self._released, prefix]
        joined = Trajectories.concatenate(parts)
        self._released = replace(joined, unit_ids=np.arange(len(joined), dtype=np.uint64))

    def _keep_counts(self, draw: Draw, counts: NDArray[np.float64], steps: int) -> None:
        """Write raw counts where the owner's private report reads them; never for release."""
        path = self.settings.private / COUNTS_FILE
        kept = read_counts(self.settings.private)
        if len(counts):
            kept[draw.index] = (counts, steps)
        rows = [
            {"draw": number, "steps": length, "counts": values.tolist()}
            for number, (values, length) in kept.items()
        ]
        write_atomically(path, json.dumps(rows), mode=0o600)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """How many steps each draw released, (T,), zeros included."""
        return np.array(self._lengths, np.int64)

    def released(self) -> Trajectories | None:
        """Return the stable prefixes, in the order of draws; None: there is none."""
        return self._released

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return what a resume needs: what was released."""
        tensors = {"lengths": torch.from_numpy(self.lengths)}
        if self._released is not None:
            for name in _COLUMNS:
                tensors[name] = torch.from_numpy(getattr(self._released, name).copy())
        return tensors

    def restore(self, tensors: Mapping[str, torch.Tensor], steps_done: int) -> None:
        """Go on after ``steps_done`` draws from what `tensors` returned.

        Raises:
            ConfigError: the tensors are not those of a filter after so many draws.
            UnsafeError: the order of draws is not there: which trajectories were used is not known.
        """
        lengths = tensors.get("lengths")
        if lengths is None or lengths.shape != (steps_done,):
            raise ConfigError(f"tensors must hold the lengths of {steps_done} draws")
        if self._order.started < steps_done:
            raise UnsafeError(
                f"{self.settings.private / DRAWS_FILE} does not know of {steps_done} draws that"
                " were made: put it back, or start a new run"
            )
        released = released_prefixes(tensors)
        rows = [] if released is None else released.lengths.tolist()
        if lengths[lengths > 0].tolist() != rows:
            raise ConfigError("tensors must hold as many steps as their lengths say")
        self._lengths, self._released = [int(length) for length in lengths], released


@dataclass(frozen=True, kw_only=True)
class SvtFilters:
    """Builds the filter of a run in the server's process.

    Args:
        settings: see `FilterSettings`.
    """

    settings: FilterSettings

    def __call__(self) -> SvtFilter:
        """Return a fresh filter."""
        return SvtFilter(self.settings)


def released_prefixes(tensors: Mapping[str, torch.Tensor]) -> Trajectories | None:
    """Return the stable prefixes in a filter's checkpoint; None: there is none.

    Args:
        tensors: what `SvtFilter.tensors` returned.
    """
    if "offsets" not in tensors:
        return None
    columns = {name: tensors[name].numpy().copy() for name in _COLUMNS}
    units = np.arange(len(columns["offsets"]) - 1, dtype=np.uint64)
    return Trajectories(**columns, unit_ids=units)


def read_counts(private: Path) -> dict[int, tuple[NDArray[np.float64], int]]:
    """Return the raw counts (K,) of each draw and the steps it released: not for release.

    Args:
        private: the run's private folder; empty where nothing was drawn.
    """
    path = private / COUNTS_FILE
    if not path.exists():
        return {}
    with storage_errors(f"read {path}"):
        rows = json.loads(path.read_text())
    return {row["draw"]: (np.array(row["counts"]), row["steps"]) for row in rows}


def _ended(prefix: Trajectories) -> Trajectories:
    """Return the trajectory, marked truncated where it does not terminate."""
    truncated = prefix.truncated.copy()
    truncated[-1] = not prefix.terminated[-1]
    return replace(prefix, truncated=truncated)
