"""What is killed: commands on small worlds, and what must hold once they have ended."""

import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from distributed_privrl.core.files import UNFINISHED
from distributed_privrl.data.store import FOLDER_VARIABLE, DatasetStore
from distributed_privrl.experiments.clearance import release_of
from distributed_privrl.experiments.registry import load_config
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import read_certificate
from tests.chaos.points import in_child
from tests.worlds import crowd, mazes
from tests.worlds.opened import opened

ROWS, TRIP = 60, 6
SCHEMA = """
columns:
  observation: [x]
  action: [u]
  reward: r
  terminated: end
  trajectory: trip
  order: hour
  unit: who
spaces:
  observation: {type: box}
  action: {type: box, low: -1, high: 1}
"""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A command on a world of its own.

    Args:
        name: of the table's row.
        prepare: makes the world.
        command: arguments of ``privrl``; ``{world}`` is the world's folder.
        check: raises unless what the command left is whole.
        resumes: whether it goes on with ``--resume``; else it is called again as it was.
        secret: whether no rows may lie where others can read them.
    """

    name: str
    prepare: Callable[[Path], None]
    command: tuple[str, ...]
    check: Callable[[Path], None]
    resumes: bool = False
    secret: bool = False

    def arguments(self, world: Path) -> list[str]:
        """Return the command in ``world``."""
        return [argument.replace("{world}", str(world)) for argument in self.command]


def enter(world: Path) -> None:
    """Let this process's datasets and ledger be those of ``world``."""
    os.environ[FOLDER_VARIABLE] = str(world / "datasets")
    os.environ["PRIVRL_LEDGER"] = f"sqlite:///{world / 'ledger.sqlite'}"


def privrl(world: Path, *arguments: str, entered: Callable[[Path], None] = enter) -> None:
    """Run the command line in this process.

    Args:
        world: its folder.
        arguments: of the command.
        entered: lets datasets and ledger be those of the world.

    Raises:
        SystemExit: always, with its exit code.
    """
    from distributed_privrl.cli import main

    entered(world)
    sys.argv = ["privrl", *arguments]
    main()


def _done(world: Path, *arguments: str) -> None:
    log = world / "preparation.log"
    if code := in_child(lambda: privrl(world, *arguments), log=log):
        raise RuntimeError(f"privrl {' '.join(arguments)}: exit {code}\n{log.read_text()}")


def prepare_run(values: dict[str, Any]) -> Callable[[Path], None]:
    """Return what makes the world of a run on the tiny mazes."""

    def prepare(world: Path) -> None:
        mazes.maze_store(world / "datasets")
        (world / "run.yaml").write_text(yaml.safe_dump(values))
        budget = ("--epsilon", "5", "--delta", "1e-5", "--unit", "transition")
        _done(world, "ledger", "budget", mazes.SENSITIVE, *budget)

    return prepare


def _crowd_run(world: Path) -> None:
    crowd.crowd_store(world / "datasets")
    (world / "bounds.yaml").write_text(crowd.BOUNDS)
    values = crowd.config_values(
        output__dataset="crowd/stable-v0", data__bounds=str(world / "bounds.yaml")
    )
    (world / "run.yaml").write_text(yaml.safe_dump(values))
    budget = ("--epsilon", "20", "--delta", "0.02", "--unit", crowd.UNIT_COLUMN)
    _done(world, "ledger", "budget", crowd.DATASET, *budget, "--relation", "policy_level")


def check_run(world: Path) -> None:
    """Check the end of a run: certificate, ledger, outputs, metadata, and that nothing is left.

    Raises:
        AssertionError: something does not hold.
    """
    run = world / "run"
    enter(world)
    log, certificate = world / "verify.log", run / "certificate.json"
    url = os.environ["PRIVRL_LEDGER"]
    verify = ("certificate", "verify", str(certificate), "--ledger", url)
    code = in_child(lambda: privrl(world, *verify), log=log)
    assert code == 0, log.read_text()
    found = read_certificate(certificate)
    assert found.status == "valid"
    store = DatasetStore()
    for dataset in {one.id.split("/data/")[0] for one in found.outputs if "/data/" in one.id}:
        release = release_of(store, dataset)
        assert release is not None
        assert release.certificate is not None
        assert release.certificate.digest == found.digest
    training: Any = load_config(run / "config.yaml", []).training
    most = training.rounds + training.spare_rounds
    for stage in found.stages:
        counts = [one.count for one in stage.events if one.kind == "poisson_gaussian"]
        assert sum(counts) <= most
    ledger = Ledger()
    name = json.loads((run / "checkpoint" / "run.json").read_text())["run_id"]
    assert all(entry.id.startswith(name) for entry in ledger.entries())
    for account in ledger.accounts():
        assert account.spent_epsilon <= account.epsilon * (1 + 1e-9)
    ledger.close()
    assert len((run / "metrics.jsonl").read_text().splitlines()) == len(found.stages)
    check_nothing_is_left(world)


def check_nothing_is_left(world: Path) -> None:
    """Check that no unfinished file or folder lies anywhere.

    Raises:
        AssertionError: one does.
    """
    left = [
        path.relative_to(world).as_posix()
        for path in world.rglob("*")
        if path.name.startswith(UNFINISHED) or path.name.endswith((".part", ".tmp"))
    ]
    assert left == []


def check_secret(world: Path) -> None:
    """Check that only their owner can read what lies in the store.

    Raises:
        AssertionError: others can.
    """

    def closed(path: Path) -> bool:
        return stat.S_IMODE(path.stat().st_mode) & 0o077 == 0

    root = world / "datasets"
    for path in root.rglob("*"):
        if path.is_file():
            above = [one for one in path.parents if one.is_relative_to(root) and one != root]
            assert closed(path) or any(map(closed, above)), path.relative_to(world)


def write_table(world: Path) -> None:
    """Write the table that is imported, and its schema."""
    numbers = np.random.default_rng(0).uniform(-1, 1, (ROWS, 3)).round(6)
    lines = [
        f"{row // TRIP},{row % TRIP},person {row // TRIP // 2},{x},{u},{r},0"
        for row, (x, u, r) in enumerate(numbers.tolist())
    ]
    (world / "table.csv").write_text("\n".join(["trip,hour,who,x,u,r,end", *lines]) + "\n")
    (world / "schema.yaml").write_text(SCHEMA)
    (world / "open.yaml").write_text(f"{SCHEMA}public: true\n")


def _check_dataset(world: Path, dataset: str, steps: int, *, open_to_others: bool) -> None:
    store = DatasetStore(world / "datasets")
    rows = store.read_trajectories(dataset)
    assert len(rows.rewards) == opened(store.info(dataset).total_steps) == steps
    folder = store.root / dataset
    assert bool(stat.S_IMODE(folder.stat().st_mode) & 0o055) == open_to_others
    check_nothing_is_left(world)


def _check_import(dataset: str, *, open_to_others: bool) -> Callable[[Path], None]:
    steps = ROWS - ROWS // TRIP  # last rows have no successor
    return lambda world: _check_dataset(world, dataset, steps, open_to_others=open_to_others)


def _check_replay(world: Path) -> None:
    _check_dataset(world, "pole/replay-v0", 40, open_to_others=False)
    about = opened(DatasetStore(world / "datasets").info("pole/replay-v0").metadata)
    assert "behaviour" in about["reference_returns"]


def _check_experts(world: Path) -> None:
    from distributed_privrl.agents.experts import (
        ExpertFacts,
        policies_digest,
        policy_units,
        read_log_probabilities,
    )

    store, dataset = DatasetStore(world / "datasets"), "pole/experts-v0"
    info = store.info(dataset)
    assert len(policy_units(store, dataset)) == ExpertFacts.of(info).count == 2
    assert len(read_log_probabilities(store, dataset)) == opened(info.total_steps)
    assert policies_digest(store, dataset)
    check_nothing_is_left(world)


RUN = ("run", "{world}/run.yaml", "--out", "{world}/run")
"""A run with two workers in one process."""

SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        name="run, dataset",
        prepare=prepare_run(mazes.ar_values(privacy__accountant="rdp")),
        command=RUN,
        check=check_run,
        resumes=True,
    ),
    Scenario(
        name="import, sensitive",
        prepare=write_table,
        command=(
            *("import", "{world}/table.csv", "--schema", "{world}/schema.yaml"),
            *("--dataset", "clinic/rows-v0"),
        ),
        check=_check_import("clinic/rows-v0", open_to_others=False),
        secret=True,
    ),
    Scenario(
        name="import, public",
        prepare=write_table,
        command=(
            *("import", "{world}/table.csv", "--schema", "{world}/open.yaml"),
            *("--dataset", "clinic/open-v0"),
        ),
        check=_check_import("clinic/open-v0", open_to_others=True),
    ),
    Scenario(
        name="collect, replay",
        prepare=lambda world: None,
        command=(
            *("collect", "pendulum-replay", "--dataset", "pole/replay-v0", "--steps", "40"),
            *("-o", "training_steps=4", "-o", "snapshots=2", "-o", "reference_episodes=1"),
        ),
        check=_check_replay,
        secret=True,
    ),
    Scenario(
        name="collect, experts",
        prepare=lambda world: None,
        command=(
            *("collect", "experts-cartpole", "--dataset", "pole/experts-v0", "--experts", "2"),
            *("--trajectories", "2", "-o", "reference_episodes=1"),
            *("-o", "training={updates: 2, least_updates: 1, environments: 4}"),
        ),
        check=_check_experts,
        secret=True,
    ),
    Scenario(
        name="run, policy and dataset",
        prepare=_crowd_run,
        command=RUN,
        check=check_run,
        resumes=True,
    ),
)
