"""Who may read the files of a dataset, and what is exported of it."""

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from distributed_privrl.core.files import UNFINISHED, write_atomically
from distributed_privrl.data.exporting import export
from distributed_privrl.data.splitting import split
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from tests.data.conftest import SPACES, walk

PUBLIC = {"declared_public": True}
CERTIFICATE = {"privacy_certificate": {"status": "valid"}}


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def modes(folder: Path) -> dict[str, int]:
    """Return the mode of the folder and of all that lies in it, by relative path."""
    paths = [folder, *folder.rglob("*")]
    return {
        path.relative_to(folder).as_posix(): stat.S_IMODE(path.stat().st_mode) for path in paths
    }


def written(store: DatasetStore, metadata: dict[str, object]) -> None:
    store.write_trajectories("a-v0", walk((3, 2, 4, 2)), **SPACES, metadata=metadata)


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_sensitive_rows_are_their_owners_alone(store: DatasetStore, mask: int) -> None:
    with umask(mask):
        written(store, {})
        split(store, "a-v0", held_out_share=0.5, seed=0)
        store.update_metadata("a-v0", {"note": 1})
        store.update_metadata("a-v0", {"privacy_certificate": {"status": "non_private"}})
        for name in ("a-v0", "a-training-v0", "a-held-out-v0"):
            found = modes(store.root / name)
            assert len(found) == 4
            assert {found.pop("."), found.pop("data")} == {0o700}
            assert set(found.values()) == {0o600}
        for kind in ("csv", "npz", "parquet"):
            export(store, "a-v0", kind, store.root / kind)
            assert stat.S_IMODE((store.root / kind).stat().st_mode) == 0o600


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o027, 0o077])
@pytest.mark.parametrize("how", ["declared", "released"])
def test_other_rows_are_as_open_as_the_umask_says(store: DatasetStore, mask: int, how: str) -> None:
    with umask(mask):
        written(store, PUBLIC if how == "declared" else {})
        if how == "released":
            store.update_metadata("a-v0", CERTIFICATE)
        found = modes(store.root / "a-v0")
        assert {found.pop("."), found.pop("data")} == {0o755 & ~mask}
        assert set(found.values()) == {0o644 & ~mask}
        export(store, "a-v0", "csv", store.root / "csv")
        assert stat.S_IMODE((store.root / "csv").stat().st_mode) == 0o644 & ~mask
        write_atomically(store.root / "file", "text")
        assert stat.S_IMODE((store.root / "file").stat().st_mode) == 0o644 & ~mask


def test_nobody_reads_along_while_rows_are_written(
    store: DatasetStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen: list[int] = []

    def chunks() -> Iterator[Trajectories]:
        (temporary,) = store.root.glob(f"{UNFINISHED}*")
        seen.append(stat.S_IMODE(temporary.stat().st_mode))
        yield walk()

    with umask(0):
        store.write_trajectories("a-v0", chunks(), **SPACES)
        original: Callable[..., int] = Path.write_bytes

        def looking(self: Path, content: bytes) -> int:
            seen.append(stat.S_IMODE(self.stat().st_mode))
            return original(self, content)

        monkeypatch.setattr(Path, "write_bytes", looking)
        write_atomically(tmp_path / "secret", "text", mode=0o600)
    assert seen == [0o700, 0o600]
