"""Private selection: what it refuses before its charge, and what is left when it has ended."""

import json
import logging
import os
import subprocess
import sys
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from distributed_privrl.cli.app import app
from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    StorageError,
    UnsafeError,
    UselessError,
)
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.core.files import unfinished_folder
from distributed_privrl.data.store import FOLDER_VARIABLE
from distributed_privrl.experiments.audit import audit_run
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.release_evaluation import stored_trials
from distributed_privrl.experiments.sampling import finished_config
from distributed_privrl.experiments.sweeps import pool, selection
from distributed_privrl.experiments.sweeps.memory import clear_left
from distributed_privrl.experiments.sweeps.pool import check_covered
from distributed_privrl.experiments.sweeps.private import check_private
from distributed_privrl.experiments.sweeps.selection import best_of, select
from distributed_privrl.privacy.certificate import Certificate, Stage, build_certificate
from distributed_privrl.privacy.events import Event, GaussianEvent, LaplaceEvent
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.verdict import Grade, Verdict
from tests.worlds.choosing import JUDGE, Choosing, drawn, make_quick
from tests.worlds.intake import RELEASED, admissions, public_admissions, write


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Choosing:
    make_quick(monkeypatch)
    return Choosing(tmp_path)


def untouched(world: Choosing) -> bool:
    """Say whether nothing was charged, and nothing begun."""
    return world.ledger.entries() == [] and not (world.folder / "run").exists()


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Choosing, str]:
    """A selection by the command line, and what it said."""
    with pytest.MonkeyPatch.context() as patch:
        make_quick(patch)
        world = Choosing(tmp_path_factory.mktemp("done"))
        world.sweep()
        environment = {FOLDER_VARIABLE: str(world.store.root), "PRIVRL_LEDGER": world.url}
        words = ["sweep", str(world.file), "--out", str(world.folder / "run")]
        with drawn(2):
            ended = CliRunner().invoke(app, words, env=environment, prog_name="privrl")
    assert ended.exit_code == 0, ended.output
    return world, ended.stdout


def test_the_command_line_shows_the_winner_and_what_it_cost(done: tuple[Choosing, str]) -> None:
    world, said = done
    told = json.loads((world.folder / "run" / "selection.json").read_text())
    (entry,) = world.ledger.entries()
    lines = dict(line.split(None, 1) for line in said.splitlines())
    assert lines == {
        "model.bins": str(told["config"]["model"]["bins"]),
        "seed": str(told["config"]["seed"]),
        "score": f"{told['score']:.4g}",
        "released": RELEASED,
        "epsilon": f"{entry.epsilon:.4f} (delta 0.0001)",
        "certificate": str(world.folder / "run" / "certificate.json"),
        "report": str(world.folder / "run" / "report.html"),
    }


def test_what_it_left_is_no_run_to_go_on_with(done: tuple[Choosing, str], tmp_path: Path) -> None:
    world, _ = done
    run, kept = world.folder / "run", "holds what a private selection released"
    before = sorted(run.rglob("*"))
    config = world.config(output__dataset="intake/other-v0")
    with pytest.raises(ConfigError, match=kept):
        world.start(config, resume=True)
    with pytest.raises(ConfigError, match=kept):
        world.start(config)
    with pytest.raises(ConfigError, match=kept):
        finished_config(run, 10, None)
    with pytest.raises(ConfigError, match=kept):
        audit_run(run, out=tmp_path / "audit", held_out=JUDGE, store=world.store)
    with pytest.raises(ConfigError, match="does not go on"):
        world.select(output__dataset="intake/other-v0")
    assert sorted(run.rglob("*")) == before
    assert len(world.ledger.entries()) == 1


def test_a_winners_agents_name_the_selections_certificate(
    world: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of its trial named the trial's, which was destroyed with it."""
    right = selection.release_winner

    def released(winner, *about, **more):
        trained = {
            "dataset": RELEASED,
            "content": winner.certificate.digest,
            "environment": "CartPole-v1",
            "trainer": "bc",
            "agent": "bc",
            "seed": 0,
            "steps": 2,
            "episodes": 1,
            "options": {},
            "curve_steps": [1, 2],
            "curve_returns": [[9.0], [10.0]],
        }
        return right(replace(winner, agents=[trained]), *about, **more)

    monkeypatch.setattr(selection, "release_winner", released)
    with drawn(1):
        found = world.select()
    run = RunDirectory(world.folder / "run")
    (kept,) = stored_trials(run, found.certificate)
    assert kept["content"] == found.certificate.digest
    assert kept["curve_returns"] == [[9.0], [10.0]]
    spoilt = json.dumps([{**kept, "content": "of another release"}])
    (run.path / "evaluation.json").write_text(spoilt)
    with pytest.raises(ConfigError, match="were not trained on what this run released"):
        stored_trials(run, found.certificate)


def test_rows_that_judge_are_public_ones(world: Choosing) -> None:
    write(world.store, "intake/unknown-v0", public_admissions(50))
    declared = {"metadata": {"declared_public": True}}
    write(world.store, "intake/copied-v0", admissions(60), **declared)
    for name, message in (
        ("intake/unknown-v0", "was not declared public"),
        ("intake/copied-v0", "intake/copied-v0"),
        ("intake/nowhere-v0", "no dataset 'intake/nowhere-v0'"),
    ):
        with pytest.raises((ConfigError, UnsafeError), match=message):
            world.select(selection__score={"by": "fidelity", "to": name})
        assert untouched(world)


def test_nothing_is_begun_where_losers_would_lie_on_a_disk(world: Choosing) -> None:
    world.memory.rmdir()
    with pytest.raises(UnsafeError, match="would lie on a disk"):
        world.select()
    assert untouched(world)


def test_a_node_without_memory_or_datasets_is_refused_before_the_charge(
    world: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of another node than the command's: there trials would lie on a disk, or all fail."""
    right = selection.PoolSpec
    elsewhere = world.folder / "elsewhere"
    for name, error in (("memory", UnsafeError), ("root", ConfigError)):

        def there(key: str = name, **about: object) -> object:
            return right(**(about | {key: str(elsewhere)}))

        monkeypatch.setattr(selection, "PoolSpec", there)
        with drawn(1) as numbers, pytest.raises(error):
            world.select()
        assert numbers == []
        assert untouched(world)
        assert not list(world.memory.iterdir())


def test_what_a_killed_process_had_in_memory_goes_with_it(tmp_path: Path) -> None:
    """Also on a node where no other selection ever begins."""
    script = (
        "import sys, time; from pathlib import Path\n"
        "from distributed_privrl.experiments.sweeps.memory import guarded_folder\n"
        "with guarded_folder(Path(sys.argv[1])) as folder:\n"
        "    (folder / 'loser').write_text('kept')\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(600)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "loser").exists()
        process.kill()
    end = time.monotonic() + 30
    while folder.exists():
        assert time.monotonic() < end, "nobody removed it"
        time.sleep(0.02)


def test_nothing_of_a_trial_is_kept_for_other_runs(world: Choosing, tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match=r"runtime.pretrained=.* a file for each trial"):
        world.select(runtime__pretrained=str(tmp_path / "pretrained"))
    assert untouched(world)


def test_no_log_of_an_object_store_counts_trials(world: Choosing) -> None:
    with pytest.raises(UnsafeError, match="each hidden trial would read it"):
        world.select(data__bounds="s3://clinic/bounds.yaml")
    assert untouched(world)


def test_no_budget_is_no_selection(world: Choosing) -> None:
    with pytest.warns(UserWarning, match="goes down"):
        world.budget(epsilon=5.0)  # enough for a trial, and not for the choice
    with drawn(1) as numbers, pytest.raises(BudgetError, match="epsilon"):
        world.select()
    assert numbers == []
    assert untouched(world)


def test_a_selection_that_is_useless_everywhere_is_refused(
    world: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    bins, right = [], selection.plan_run

    def plan(config, store):
        bins.append(config.model.bins)
        grade = Grade.HOPELESS if config.model.bins in hopeless else Grade.LIMITED
        return replace(right(config, store), verdict=Verdict(grade=grade, reason="r", advice="a"))

    monkeypatch.setattr(selection, "plan_run", plan)
    hopeless = {4, 6}
    with pytest.raises(UselessError, match="useless"):
        world.select()
    assert untouched(world)
    assert set(bins) == {4, 6}
    hopeless = {4}
    with drawn(0):
        world.select()
    assert len(world.ledger.entries()) == 1


def test_an_error_after_the_charge_says_that_it_is_spent(
    world: Choosing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("cannot write the release: the disk is full")

    monkeypatch.setattr(selection, "release_winner", full)
    with drawn(1), pytest.raises(StorageError, match="the disk is full") as ended:
        world.select()
    assert ended.value.__notes__ == [selection.SPENT]
    (entry,) = world.ledger.entries()
    assert world.ledger.accounts()[0].spent_epsilon == entry.epsilon
    with pytest.raises(ConfigError, match="does not go on"):
        world.select()


def test_a_trial_that_costs_more_than_was_reckoned_has_no_score() -> None:
    reckoned = (GaussianEvent(noise_multiplier=2.0, count=3), LaplaceEvent(noise_multiplier=4.0))
    check_covered(certificate_of(*reckoned), reckoned)
    check_covered(certificate_of(GaussianEvent(noise_multiplier=2.0, count=2)), reckoned)
    for more in (
        GaussianEvent(noise_multiplier=2.0, count=4),
        GaussianEvent(noise_multiplier=1.9),
        LaplaceEvent(noise_multiplier=4.0, count=2),
    ):
        with pytest.raises(UnsafeError, match="more than the selection reckons with"):
            check_covered(certificate_of(more), reckoned)


def certificate_of(*events: Event) -> Certificate:
    stage = Stage(
        name="release",
        dataset="intake/admissions-v0",
        unit="patient",
        relation=Relation.REPLACE_WITH_NULL,
        units=300,
        units_source="declared",
        accountant="pld",
        delta=1e-5,
        events=events,
    )
    return build_certificate(
        method="marginals",
        stages=[stage],
        spare_rounds=0,
        noise_source=("float64_lattice", True, ()),
        ledger_entries=["entry"],
        outputs=(),
        versions={},
    )


@pytest.mark.parametrize(
    ("scores", "best"),
    [([], None), ([None, None], None), ([None, -3.0], 1), ([1.0, 2.0, 2.0], 1), ([0.0, None], 0)],
)
def test_the_first_of_the_best_scores_wins(scores: list[float | None], best: int | None) -> None:
    assert best_of(scores) == best


def test_silence_ends(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("distributed_privrl.test")

    def talk() -> None:
        with pool._silence():
            print("hidden")
            os.write(2, b"hidden")
            logger.critical("hidden")
            warnings.warn("hidden", stacklevel=1)
            raise KeyError

    with pytest.raises(KeyError):
        talk()
    print("heard")
    sys.stderr.write("heard too")
    logger.warning("logged")
    assert capfd.readouterr() == ("heard\n", "heard too")
    assert [record.getMessage() for record in caplog.records] == ["logged"]


def test_what_live_processes_hold_in_memory_stays(tmp_path: Path) -> None:
    dead = tmp_path / ".privrl-unfinished-dead"
    dead.mkdir()
    with unfinished_folder(tmp_path) as live:
        clear_left(tmp_path, seconds=0.2)
        assert live.exists()
        assert not dead.exists()


def test_trials_read_linked_rows_and_write_nothing_to_them(world: Choosing) -> None:
    def state() -> dict[str, tuple[int, int]]:
        found = (path for path in world.store.root.rglob("*") if not path.is_dir())
        return {str(p): (p.stat().st_mtime_ns, p.stat().st_mode) for p in found}

    before = state()
    with drawn(2):
        done = select(
            world.sweep(data__public=[JUDGE], selection__score={"by": "fidelity"}),
            LocalExecutor(),
            out=world.folder / "run",
            ledger_url=world.url,
            store=world.store,
            memory=world.memory,
        )
    assert done.released == RELEASED
    after = state()
    assert {path: kept for path, kept in after.items() if RELEASED not in path} == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"releases": ("intake/other-v0",)}, "which was released before"),
        ({"output": SimpleNamespace(COUNTED=None, datasets=("a/b-v0",))}, "beside the policy"),
    ],
)
def test_one_release_of_sensitive_and_public_rows_is_selected(
    changed: dict[str, object], message: str
) -> None:
    values: dict[str, object] = {
        "method": "expert",
        "privacy": SimpleNamespace(epsilon=1.0),
        "evaluation": SimpleNamespace(trainers=()),
        "output": SimpleNamespace(COUNTED="rows", datasets=("a/b-v0",)),
        "releases": (),
        "runtime": SimpleNamespace(pretrained=None),
    }
    check_private(SimpleNamespace(**values), axes=(), grids=())  # type: ignore[arg-type]
    wrong = SimpleNamespace(**values | changed)
    with pytest.raises((ConfigError, UnsafeError), match=message):
        check_private(wrong, axes=(), grids=())  # type: ignore[arg-type]
