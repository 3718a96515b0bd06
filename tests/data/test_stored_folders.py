"""A folder in a store is the same from every machine, and one process at a time works in it."""

import os
import stat
from contextlib import ExitStack
from pathlib import Path

import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import (
    UNFINISHED,
    remove_file,
    remove_folder,
    unfinished_folder,
    write_atomically,
)
from distributed_privrl.core.folders import as_given, keeping_of, refresh_all
from distributed_privrl.core.places import place_of
from distributed_privrl.data import folder_holder
from distributed_privrl.data.folder_holder import HOLDER, held, own_holder
from distributed_privrl.data.folder_versions import VERSIONS
from distributed_privrl.data.objects import Objects, objects_at
from distributed_privrl.data.plain_copies import plain_copy
from distributed_privrl.data.stored_folders import (
    PRIVATE,
    arrive,
    opened_folder,
    private_prefix,
)
from tests.worlds.bucket import Puts, machine, stand_in

URI = place_of("--out", "s3://clinic/runs/one")
OPEN, SECRET = b"what may leave", b"what may not"


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stand_in(tmp_path, monkeypatch)


@pytest.fixture
def written(bucket: Path) -> Path:
    """A folder that a process on another machine wrote and left."""
    with opened_folder(URI) as folder:
        write_atomically(folder / "report.json", OPEN)
        write_atomically(folder / "checkpoint" / "rounds.safetensors", SECRET, mode=0o600)
        write_atomically(folder / "private" / "report.html", SECRET, mode=0o600)
    return bucket


def objects_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_what_one_machine_wrote_another_reads(
    written: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = machine(tmp_path / "another", monkeypatch)
    with opened_folder(URI) as folder:
        assert (folder / "report.json").read_bytes() == OPEN
        kept = folder / "checkpoint" / "rounds.safetensors"
        assert (kept.read_bytes(), stat.S_IMODE(kept.stat().st_mode)) == (SECRET, 0o600)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        write_atomically(kept, b"newer", mode=0o600)
        remove_file(folder / "report.json")
        remove_folder(folder / "private")
    assert not list(temporary.iterdir())  # the copy goes with the process
    with opened_folder(URI) as folder:
        assert [path.read_bytes() for path in folder.rglob("*") if path.is_file()] == [b"newer"]
    assert len(objects_in(written)) == 1  # nothing older is left, under either prefix


def test_what_is_its_owner_s_lies_under_the_private_prefix_alone(written: Path) -> None:
    """Privacy: StoredFolder."""
    public, private = objects_in(written / "runs"), objects_in(written / PRIVATE)
    assert {path.read_bytes() for path in public} == {OPEN}
    assert {path.read_bytes() for path in private} == {SECRET}
    assert written / PRIVATE / "runs" / "one" / "report.html" in private  # for people
    assert private_prefix(URI) == "s3://clinic/private/runs/one"


def test_people_find_files_by_their_plain_names(written: Path) -> None:
    assert (written / "runs" / "one" / "report.json").read_bytes() == OPEN
    with plain_copy(URI) as copy:
        assert copy.fetch("report.json").read_bytes() == OPEN
        assert not copy.fetch("nothing.json").exists()


def test_a_folder_is_there_whole_or_not_at_all(bucket: Path) -> None:
    with opened_folder(URI) as folder, unfinished_folder(folder) as unfinished:
        (unfinished / "model" / "deep").mkdir(parents=True)
        (unfinished / "model" / "deep" / "weights").write_bytes(SECRET)
        with Puts(1, half=True).counted(), pytest.raises(StorageError):
            keeping_of(folder).publish(unfinished / "model", folder / "model")
        assert not (folder / "model").exists()
        keeping_of(folder).publish(unfinished / "model", folder / "model")
    assert not objects_in(bucket / "runs")
    with opened_folder(URI) as folder:
        assert (folder / "model" / "deep" / "weights").read_bytes() == SECRET


@pytest.mark.parametrize("fails", [1, 2])
@pytest.mark.parametrize("half", [False, True])
def test_a_write_that_fails_leaves_what_was_there(written: Path, fails: int, half: bool) -> None:
    with opened_folder(URI) as folder:
        path = folder / "report.json"
        with Puts(fails, half=half).counted(), pytest.raises(StorageError):
            write_atomically(path, b"longer than what was there before")
        assert path.read_bytes() == OPEN
        refresh_all()
        assert path.read_bytes() == OPEN
    with opened_folder(URI) as folder:  # whoever comes next finds it, too, and goes on
        assert (folder / "report.json").read_bytes() == OPEN
        write_atomically(folder / "report.json", b"again")
    with opened_folder(URI) as folder:
        assert (folder / "report.json").read_bytes() == b"again"
    assert len(objects_in(written / "runs")) == 2  # the version, and the plain copy


def test_bytes_that_somebody_changed_are_not_read(written: Path) -> None:
    (version,) = objects_in(written / "runs" / "one" / VERSIONS / "report.json")
    version.write_bytes(b"WHAT MAY LEAVE")
    with (
        pytest.raises(StorageError, match=r"report.json is not what was written"),
        ExitStack() as s,
    ):
        s.enter_context(opened_folder(URI))


def test_names_that_point_elsewhere_are_not_followed(
    written: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (version,) = objects_in(written / "runs" / "one" / VERSIONS / "report.json")
    hostile = [f"{VERSIONS}/{name}/{version.name}" for name in ("../../outside", "/outside", "")]
    names = Objects.names
    monkeypatch.setattr(Objects, "names", lambda *given: [*hostile, *names(*given)])
    with opened_folder(URI) as folder:
        assert sorted(folder.glob("*")) == [
            folder / "checkpoint",
            folder / "private",
            folder / "report.json",
        ]


def test_a_process_on_another_machine_sees_what_was_published_before_it_came(
    written: Path, tmp_path: Path
) -> None:
    """As an actor: the path is all that it is given, and the driver reads what it wrote."""
    with opened_folder(URI) as folder:
        write_atomically(folder / "report.json", b"driver's")
        there = Path(str(folder).replace(str(tmp_path / "temporary"), str(tmp_path / "node")))
        with pytest.raises(StorageError, match="has not opened"):
            write_atomically(there / "report.json", b"lost")
        arrive(there)
        assert (there / "report.json").read_bytes() == b"driver's"
        write_atomically(there / "checkpoint" / "rounds.safetensors", b"actor's", mode=0o600)
        assert (folder / "checkpoint" / "rounds.safetensors").read_bytes() == SECRET
        refresh_all()
        assert (folder / "checkpoint" / "rounds.safetensors").read_bytes() == b"actor's"


def test_two_do_not_work_in_one_folder(bucket: Path) -> None:
    with opened_folder(URI) as folder:
        write_atomically(folder / "report.json", OPEN)
        objects = objects_at(private_prefix(URI))
        mine = objects.read(HOLDER)
        assert mine is not None
        beats = iter(range(1, 5))

        def pause(_: float) -> None:  # the first one says that it lives
            objects.put(HOLDER, mine.replace(b'"beat": 0', b'"beat": %d' % next(beats)))

        with (
            pytest.raises(StorageError, match=r"works in s3://clinic/runs/one: wait until"),
            held(objects, "second", shown=URI, pause=pause),
        ):
            pass
        with opened_folder(URI, work=False) as other:  # who reads alone is let in
            assert (other / "report.json").read_bytes() == OPEN
    assert objects_at(private_prefix(URI)).read(HOLDER) is None


def test_one_that_is_silent_is_followed_and_stops(bucket: Path) -> None:
    waited: list[float] = []
    with opened_folder(URI) as folder:
        write_atomically(folder / "report.json", OPEN)
        with held(objects_at(private_prefix(URI)), "second", shown=URI, pause=waited.append):
            assert sum(waited) >= folder_holder.SILENT_SECONDS
            with pytest.raises(StorageError, match=r"another process on .* has gone on"):
                write_atomically(folder / "report.json", b"late")
            assert (folder / "report.json").read_bytes() == OPEN
            assert not [one for one in objects_in(bucket) if one.read_bytes() == b"late"]


def test_one_that_died_on_this_machine_is_not_waited_for(bucket: Path) -> None:
    gone = own_holder("gone")
    text = f'{{"nonce": "gone", "host": "h", "machine": "{gone.machine}", "process": {os.getpid()}'
    objects_at(private_prefix(URI)).put(HOLDER, f'{text}, "begun": {gone.begun + 1}}}'.encode())

    def pause(_: float) -> None:
        raise AssertionError("its number has another process now")

    with held(objects_at(private_prefix(URI)), "next", shown=URI, pause=pause):
        pass


@pytest.mark.parametrize(
    "uri", ["s3://clinic", "s3://clinic/private/runs", f"s3://clinic/{'k' * 300}"]
)
def test_where_no_run_can_lie(bucket: Path, uri: str) -> None:
    with (
        pytest.raises(ConfigError, match="--out s3://clinic"),
        opened_folder(place_of("--out", uri)),
    ):
        pass


def test_a_path_is_what_it_was(tmp_path: Path) -> None:
    with opened_folder(place_of("--out", f"file://{tmp_path}/run")) as folder:
        assert folder == tmp_path / "run"
        write_atomically(folder / "report.json", OPEN)
    assert (tmp_path / "run" / "report.json").read_bytes() == OPEN


def test_copies_of_the_dead_are_removed(written: Path, tmp_path: Path) -> None:
    dead = tmp_path / "temporary" / f"{UNFINISHED}copy@0a@s3%3A%2F%2Fclinic%2Fx"
    (dead / "run").mkdir(parents=True)
    with opened_folder(URI, work=False) as folder:
        assert [one.name for one in dead.parent.iterdir()] == [folder.parent.name]
        assert as_given(f"in {folder}/report.json") == "in s3://clinic/runs/one/report.json"
