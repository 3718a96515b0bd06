"""What is not finished lies apart, goes when its writer has died, and stays while it lives."""

import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest

from distributed_privrl.core.errors import FolderInUseError, StorageError
from distributed_privrl.core.files import (
    UNFINISHED,
    atomic_path,
    clear_unfinished,
    owned_folder,
    remove_folder,
    unfinished_folder,
    write_atomically,
)
from tests.worlds.limits import size_limit

WRITER = """
import sys, time
from pathlib import Path
from distributed_privrl.core.files import atomic_path
with atomic_path(Path(sys.argv[1])) as temporary:
    temporary.write_text("a sensitive row")
    print("written", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def writer(tmp_path):
    """A process that has written a part of a file and does not go on."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(tmp_path / "deep" / "file")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "written\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def left(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.name.startswith(UNFINISHED))


def test_what_a_live_process_writes_is_its_owners_alone_and_stays(
    writer: subprocess.Popen[str], tmp_path: Path
) -> None:
    (folder,) = left(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    write_atomically(tmp_path / "deep" / "other", "text")
    clear_unfinished(tmp_path, deep=True)
    assert left(tmp_path) == [folder]
    assert (folder / "file").read_text() == "a sensitive row"


@pytest.mark.parametrize("how", ["next write", "next removal", "start"])
def test_what_a_killed_process_left_goes(
    writer: subprocess.Popen[str], tmp_path: Path, how: str
) -> None:
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    assert len(left(tmp_path)) == 1
    clear_unfinished(tmp_path)  # not in the folder itself
    assert len(left(tmp_path)) == 1
    if how == "next write":
        write_atomically(tmp_path / "deep" / "other", "text")
    elif how == "next removal":
        (tmp_path / "deep" / "old").mkdir()
        remove_folder(tmp_path / "deep" / "old")
    else:
        clear_unfinished(tmp_path, deep=True)
    assert left(tmp_path) == []


def test_writers_that_clear_behind_each_other_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        for turn in range(20):
            write_atomically(tmp_path / f"{number}-{turn}", "text", beside=tmp_path)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert len(list(tmp_path.iterdir())) == 160


def test_a_folder_that_lost_its_lock_is_cleared_and_links_are_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "kept").write_text("text")
    (tmp_path / f"{UNFINISHED}link").symlink_to(other)
    (tmp_path / f"{UNFINISHED}half").mkdir()  # killed before it made its lock, or while it cleared
    (tmp_path / f"{UNFINISHED}file").write_text("text")
    clear_unfinished(tmp_path)
    assert [path.name for path in left(tmp_path)] == [f"{UNFINISHED}file", f"{UNFINISHED}link"]
    assert [path.name for path in other.iterdir()] == ["kept"]


def test_a_folder_goes_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "apart" / "folder"
    folder.mkdir(parents=True)
    (folder / "file").write_text("text")
    seen = []
    rename = os.rename

    def renamed(source: Path, target: Path) -> None:
        rename(source, target)
        seen.append((folder.exists(), (target / "file").exists()))

    monkeypatch.setattr(os, "rename", renamed)
    remove_folder(folder, beside=tmp_path)
    assert seen == [(False, True)]
    assert left(tmp_path) == []
    remove_folder(folder)  # no folder is fine


def test_an_unfinished_file_may_lie_beside_another_folder(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "data" / "file", beside=tmp_path) as temporary:
        assert temporary.parent.parent == tmp_path
        assert list((tmp_path / "data").iterdir()) == []
        temporary.write_text("text")
    assert (tmp_path / "data" / "file").read_text() == "text"
    assert left(tmp_path) == []


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    with pytest.raises(StorageError, match="cannot write"):
        write_atomically(tmp_path / "file" / "inside", "text")
    with pytest.raises(OSError, match="No such file"), unfinished_folder(tmp_path / "none"):
        pass


OWNER = """
import sys, time
from pathlib import Path
from distributed_privrl.core.files import owned_folder
with owned_folder(Path(sys.argv[1])):
    print("owned", flush=True)
    time.sleep(60)
"""


def test_a_folder_has_one_owner_until_it_is_killed(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    command = [sys.executable, "-c", OWNER, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        owner.stdout.readline()
        with (
            pytest.raises(FolderInUseError, match="another process works in"),
            owned_folder(folder),
        ):
            pass
        owner.kill()
        owner.wait()
    with owned_folder(folder):
        (folder / "file").touch()
    assert folder.exists()


def test_a_folder_that_was_made_for_its_owner_alone_goes(tmp_path: Path) -> None:
    with owned_folder(tmp_path / "run"):
        assert (tmp_path / "run").is_dir()
    assert not (tmp_path / "run").exists()
    (tmp_path / "file").touch()
    with owned_folder(tmp_path / "file"):  # whoever needs a folder refuses it
        pass


def test_a_full_disk_is_named_as_such_by_every_writer(tmp_path: Path) -> None:
    def write_hdf5(path: Path) -> None:
        with h5py.File(path, "w") as file:
            file["rows"] = np.zeros(10_000)

    for write in (write_hdf5, lambda path: path.write_bytes(bytes(80_000))):
        with (
            pytest.raises(StorageError, match=r": File too large; free some space") as refused,
            size_limit(4096),
            atomic_path(tmp_path / "file") as temporary,
        ):
            write(temporary)
        assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []
