"""One pass over a sensitive dataset: what names it in the ledger, and overlap with public sets."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.data.hashing import canonical, hash_rows
from distributed_privrl.data.layout import RowLayout, public_rows
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import part_width
from distributed_privrl.data.store import CHUNK_ROWS, DatasetStore
from distributed_privrl.data.trajectories import TRANSITION, Transitions

_FIELDS = (
    "observations",
    "actions",
    "rewards",
    "next_observations",
    "terminated",
    "truncated",
)


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """What a pass over a sensitive dataset found.

    Args:
        fingerprint: SHA-256 (hexadecimal) of its rows in order.
        overlap: whether a public dataset holds one of its rows.

    Privacy:
        Both depend on single records: the fingerprint stays in the ledger, the overlap leads to a
        refusal that the operator alone sees. Neither belongs in an artefact.
    """

    fingerprint: str
    overlap: bool


def inspect(
    store: DatasetStore,
    dataset: str,
    *,
    public_ids: Sequence[str] = (),
    chunk_rows: int = CHUNK_ROWS,
) -> Inspection:
    """Return a dataset's fingerprint, and whether public datasets hold rows of it.

    The fingerprint is over the rows (observation, action, reward, next observation, terminated,
    truncated) in order, as float32 or int64: it does not depend on chunks, on the layout, on the
    dataset's id or units, or on whether trajectories are stored as such. Rows overlap if their
    observation, action and next observation are equal as float32; rewards are left out, so that a
    public copy with other rewards is found too.

    Args:
        store: where all datasets lie.
        dataset: the sensitive id.
        public_ids: ids of the public datasets.
        chunk_rows: rows held at a time.

    Raises:
        ConfigError: no such dataset, public spaces that differ from the sensitive ones, or public
            values that are not finite.
    """
    info = store.info(dataset)
    public = _public_hashes(store, info, public_ids, chunk_rows)
    digests = {name: hashlib.sha256() for name in _FIELDS}
    overlap = False
    for chunk in store.iter_transitions(dataset, unit=TRANSITION, chunk_rows=chunk_rows):
        for name, digest in digests.items():
            digest.update(np.ascontiguousarray(canonical(getattr(chunk, name))).tobytes())
        overlap = overlap or _shares_row(_hashes(chunk), public)
    total = hashlib.sha256(b"distributed_privrl rows 1\n")
    for space in (info.observation_space, info.action_space):
        total.update(f"{type(space).__name__} {part_width(space)}\n".encode())
    for digest in digests.values():
        total.update(digest.digest())
    return Inspection(fingerprint=total.hexdigest(), overlap=overlap)


def share_rows(store: DatasetStore, one: str, other: str) -> bool:
    """Say whether two datasets hold the same row, as `inspect` compares them.

    Rows may be of any kind: one that is not finite is a row like others.

    Args:
        store: where they lie.
        one: id of the first.
        other: id of the second, whose hashes are held in memory.

    Raises:
        ConfigError: no such dataset.

    Privacy: depends on single records of both: for a refusal that the operator alone sees.
    """
    held = _sorted([_hashes(chunk) for chunk in store.iter_transitions(other, unit=TRANSITION)])
    chunks = store.iter_transitions(one, unit=TRANSITION)
    return any(_shares_row(_hashes(chunk), held) for chunk in chunks)


def _hashes(chunk: Transitions) -> NDArray[np.uint64]:
    return hash_rows([chunk.observations, chunk.actions, chunk.next_observations])


def _public_hashes(
    store: DatasetStore, info: DatasetInfo, public_ids: Sequence[str], chunk_rows: int
) -> NDArray[np.uint64]:
    """Return the two hashes of every public row, (M, 2), sorted by the first."""
    layout = RowLayout(info.observation_space, info.action_space)
    hashes = []
    for public in public_ids:
        for chunk in store.iter_transitions(public, unit=TRANSITION, chunk_rows=chunk_rows):
            for _ in public_rows(layout, {public: [chunk]}):
                pass
            hashes.append(_hashes(chunk))
    return _sorted(hashes)


def _sorted(hashes: Sequence[NDArray[np.uint64]]) -> NDArray[np.uint64]:
    joined = np.concatenate([np.empty((0, 2), dtype=np.uint64), *hashes])
    return joined[np.argsort(joined[:, 0])]


def _shares_row(hashes: NDArray[np.uint64], public: NDArray[np.uint64]) -> bool:
    """Say whether a pair of ``hashes`` (N, 2) is among ``public`` (M, 2), sorted by the first."""
    if len(public) == 0:
        return False
    nearest = np.searchsorted(public[:, 0], hashes[:, 0]).clip(max=len(public) - 1)
    return bool((public[nearest] == hashes).all(axis=1).any())
