"""An actor is built on what was published, on a node whose disk is empty."""

from pathlib import Path

import pytest

from distributed_privrl.core import folders
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.places import place_of
from distributed_privrl.data.stored_folders import opened_folder
from distributed_privrl.runtime.arriving import arriving
from tests.worlds.bucket import stand_in


class Server:
    """Goes on with what it finds when it is built."""

    on_head = True

    def __init__(self, checkpoint: Path) -> None:
        self.checkpoint, self.found = checkpoint, checkpoint.read_text()

    def advance(self) -> None:
        write_atomically(self.checkpoint, f"{self.found}, and more", mode=0o600)


def test_a_server_goes_on_on_another_node_and_the_driver_reads_what_it_wrote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in(tmp_path, monkeypatch)
    with opened_folder(place_of("--out", "s3://clinic/runs/one")) as folder:
        write_atomically(folder / "rounds.safetensors", "begun", mode=0o600)
        node = Path(str(folder).replace(str(tmp_path / "temporary"), str(tmp_path / "node")))
        built = arriving(Server, [node])
        assert (built.__name__, built.on_head) == ("Server", True)  # type: ignore[attr-defined]
        built(node / "rounds.safetensors").advance()
        folders.refresh_all()
        assert (folder / "rounds.safetensors").read_text() == "begun, and more"
        again = built(node / "rounds.safetensors")
        assert again.found == "begun, and more"
    assert arriving(Server, ()) is Server
