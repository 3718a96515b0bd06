"""A whole run by URI: it stops on one machine, goes on on another, and every verb finds it."""

from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner, Result

from distributed_privrl.cli.app import app
from tests.worlds.bucket import Puts, machine, stand_in
from tests.worlds.intake import RELEASED, Intake

URI = "s3://clinic/runs/one"


class Machine:
    """The command line on one machine after the other."""

    def __init__(self, world: Intake, patch: pytest.MonkeyPatch) -> None:
        self._world, self._patch, self._number = world, patch, 0
        patch.setenv("MINARI_DATASETS_PATH", str(world.store.root))
        patch.setenv("PRIVRL_LEDGER", world.url)
        self.config = world.folder / "run.yaml"
        values = world.config().model_dump(mode="json", exclude_unset=True)
        self.config.write_text(yaml.safe_dump(values))

    def privrl(self, *words: str) -> Result:
        """Call it with an empty disk."""
        self._number += 1
        temporary = machine(self._world.folder / f"machine{self._number}", self._patch)
        found = CliRunner().invoke(app, list(words))
        assert not list(temporary.glob(".privrl-*")), "a copy of the run is left"
        assert "copy@" not in found.output, "a path of a copy is shown"
        return found


def test_a_run_by_uri_goes_on_elsewhere_and_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    bucket = stand_in(tmp_path, monkeypatch)
    world = Intake(tmp_path).budget()
    there = Machine(world, monkeypatch)
    words = ("run", str(there.config), "--out", URI)

    with Puts(8).counted() as puts:  # the second checkpoint
        stopped = there.privrl(*words)
    assert (stopped.exit_code, "does not answer" in stopped.output) == (7, True), stopped.output
    assert "checkpoint/marginals.safetensors/00000002" in puts.names[-1]
    unfinished = there.privrl("certificate", "verify", f"{URI}/certificate.json")
    assert unfinished.exit_code == 6
    assert f"the run in {URI} is unfinished" in unfinished.output
    done = there.privrl(*words, "--resume=auto")
    assert done.exit_code == 0, done.output
    assert f"{URI}/certificate.json (valid)" in done.output
    (entry,) = world.ledger.entries()
    assert entry.committed_rounds <= entry.drawn_rounds <= entry.reserved_rounds
    assert RELEASED in world.store.ids()
    verified = there.privrl(
        "certificate", "verify", f"{URI}/certificate.json", "--ledger", world.url
    )
    assert verified.exit_code == 0, verified.output
    more = there.privrl("sample", URI, "--size", "20")
    assert more.exit_code == 0, more.output
    assert f"{URI}/samples/intake_private-more-v0/certificate.json" in more.output

    public = {path.name for path in (bucket / "runs" / "one").iterdir() if path.is_file()}
    assert public >= {"certificate.json", "config.yaml", "metrics.jsonl"}
    names = [path.as_posix() for path in (bucket / "runs").rglob("*")]
    assert not [name for name in names if "/private/" in name or name.endswith(".safetensors")]
