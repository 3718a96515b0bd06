"""The filter: draws trajectories of experts and releases their stable prefixes.

Reference: Expert-level DP, algorithm 2, with the draws and accounting of `privacy.sparse_vector`.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from randomgen import AESCounter

from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.core.executor import WorkerGroup
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.hosting import HostSpec
from distributed_privrl.methods.expert.pools import ExpertPools, padded
from distributed_privrl.privacy.noise import NoiseSource
from distributed_privrl.privacy.sparse_vector import StablePrefixes
from distributed_privrl.rounds.releases import Program

COUNTS_FILE = "prefix_counts.json"

_COLUMNS = ("observations", "actions", "rewards", "terminated", "truncated", "offsets")


@dataclass(frozen=True, kw_only=True)
class Draw:
    """One draw: private.

    Args:
        index: of the draw among all that were reserved.
        expert: number of the expert among all; None: there is none to draw.
        number: how often that expert was drawn before.
    """

    index: int
    expert: int | None
    number: int


class SecretDraws:
    """The order in which experts are drawn: secret, and one for the life of a reservation.

    Experts are drawn independently and uniformly, from AES in counter mode under a key that is a
    pseudo-random function of the secret of the run's entry in the ledger. Which draw of that order
    comes next is the number of the round that the ledger reserved for it, never a count of the
    run's own: whatever happens to the run's folder, lost, restored or copied, no two draws have the
    same number, so that no trajectory is used twice. Once the entry is settled nobody knows the
    order any more.

    Args:
        key: see `order_key`.
        draws: that are paid for; there are no more.
    """

    def __init__(self, key: bytes, *, draws: int) -> None:
        self._key, self._draws = key, draws

    def draw(self, reserved: int, live: NDArray[np.int64]) -> Draw:
        """Return the draw that the ledger reserved as its round ``reserved``, from 0 on.

        Args:
            reserved: of all rounds of the entry, those lost in crashes included.
            live: (E,) experts that can be drawn, the same ones at every draw.

        Raises:
            BudgetError: there are not so many draws.
        """
        if not 0 <= reserved < self._draws:
            raise BudgetError(
                f"all {self._draws} draws that are paid for were started: raise filter.spare"
            )
        if len(live) == 0:
            return Draw(index=reserved, expert=None, number=0)
        order = self.order(live)
        before = int(np.count_nonzero(order[:reserved] == order[reserved]))
        return Draw(index=reserved, expert=int(order[reserved]), number=before)

    def order(self, live: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the experts of all draws, (T,), among those that are ``live``: private."""
        generator = np.random.Generator(AESCounter(key=int.from_bytes(self._key, "big")))
        return live[generator.integers(len(live), size=self._draws)]


def order_key(secret: bytes) -> bytes:
    """Return the key of the order of draws, which tells nothing of the entry's other draws."""
    return hmac.digest(secret, b"order of the draws of a filter", "sha256")[:16]


@dataclass(frozen=True, kw_only=True)
class FilterSettings:
    """What the filter needs beside the hosts: public facts, and where its secrets lie.

    Args:
        prefixes: the calibrated mechanism.
        private: the run's private folder: raw counts for the owner.
        secret: reads the secret of the ledger's entry, in the process that draws.
        insecure_key: seeds the order of draws in tests; the certificate is then invalid.
    """

    prefixes: StablePrefixes
    private: Path
    secret: Callable[[], bytes]
    insecure_key: int | None = None

    def order(self) -> SecretDraws:
        """Return the order of draws.

        Raises:
            UnsafeError: the run has settled, and its order is forgotten.
        """
        if self.insecure_key is None:
            key = order_key(self.secret())
        else:
            key = hashlib.sha256(f"{self.insecure_key}/draws".encode()).digest()[:16]
        return SecretDraws(key, draws=self.prefixes.draws)


class SvtFilter(Program):
    """Draws an expert and one of its trajectories a step, and releases its stable prefix.

    Privacy:
        Unit: an expert. Relation: ``policy_level``. Sensitivity: see `ExpertHost` and
        `StablePrefixes`. Event: ``settings.prefixes.draw_events()`` a call of `step`. What is kept
        and returned is released: the states, actions and rewards of stable prefixes, with the state
        after each, and how many steps each draw released; nothing of the step after a prefix, and
        nothing of whose trajectory it is. A draw whose expert's pool is used up, or for which there
        is no expert, releases nothing; hosts are asked and noise is drawn all the same, always for
        ``max_length`` steps. Its process reads the trajectories of drawn experts itself; hosts are
        told states and actions, not whose. Raw counts stay in the run's private folder, the order
        of draws in this process.

    Args:
        settings: see there.

    Reference: Expert-level DP, algorithm 2.
    """

    def __init__(self, settings: FilterSettings) -> None:
        self.settings = settings
        self._order: SecretDraws | None = None
        self._released: Trajectories | None = None
        self._lengths: list[int] = []
        self._live: NDArray[np.int64] | None = None
        self._pools: ExpertPools | None = None

    def step(
        self,
        index: int,
        workers: WorkerGroup,
        noise: NoiseSource | None,
        reserved: int | None = None,
    ) -> None:
        """Draw a trajectory and add its stable prefix to what is released; see `Program.step`.

        Raises:
            ConfigError: steps out of order.
            UnsafeError: there is no noise, nothing was reserved, or the run has settled.
            BudgetError: all draws that are paid for were started.
        """
        if noise is None:
            raise UnsafeError("stable prefixes need noise: set privacy.epsilon, or filter.share=0")
        if reserved is None:
            raise UnsafeError("a draw needs the number under which the ledger reserved it")
        if index != len(self._lengths):
            raise ConfigError(f"index must be {len(self._lengths)}, got {index}")
        if self._live is None:
            self._live = np.flatnonzero(np.concatenate(workers.call("describe")))
        if self._order is None:
            self._order = self.settings.order()
        draw = self._order.draw(reserved, self._live)
        if self._pools is None:
            self._pools = self._read(self._order, self._live, workers)
        drawn = self._pools.drawn(draw.expert, draw.number)
        steps = self._stable_steps(draw, drawn, workers, noise)  # line 8
        self._lengths.append(steps)
        if steps:
            self._add(_ended(drawn.cut(np.array([steps]))))  # lines 9 to 11

    def _read(
        self, order: SecretDraws, live: NDArray[np.int64], workers: WorkerGroup
    ) -> ExpertPools:
        """Return the pools of all experts that the run draws; whose they are reaches no host."""
        spec: HostSpec = workers.call("built_from")[0]
        units = np.concatenate(workers.call("units"))
        drawn = np.unique(order.order(live)) if len(live) else live
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
        """
        lengths = tensors.get("lengths")
        if lengths is None or lengths.shape != (steps_done,):
            raise ConfigError(f"tensors must hold the lengths of {steps_done} draws")
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
