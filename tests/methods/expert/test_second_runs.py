"""What a run's draws use is used by no other run of the dataset, and by policies that are put."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distributed_privrl.agents.experts import experts_folder, policies_digest
from distributed_privrl.core.errors import BudgetError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.expert.hosting import StoredPool
from distributed_privrl.methods.expert.method import ExpertMethod
from distributed_privrl.methods.expert.prefix_plan import FILTER
from distributed_privrl.privacy.sparse_vector import StablePrefixes
from tests.worlds.crowd import DATASET, Crowd, config

SMALL = {
    "privacy__delta": 0.008,
    "filter__draws": 2,
    "filter__spare": 0,
    "filter__release_pool": 3,
    "training__rounds": 2,
}
"""Two draws from three trajectories of each expert, and two rounds."""
ALONE = {**SMALL, "filter__share": 1.0, "privacy__epsilon": 10.0}
BASELINE = {**SMALL, "filter__share": 0.0, "privacy__epsilon": 5.0}


def refused(world: Crowd, message: str, **changes: Any) -> None:
    """Check that a run is refused, charges nothing and leaves no folder."""
    before = world.ledger.entries()
    with pytest.raises(UnsafeError, match=message):
        world.run("refused", **changes)
    assert world.ledger.entries() == before
    assert not (world.folder / "refused").exists()


def test_no_second_run_reads_what_a_filter_draws_from(world: Crowd) -> None:
    """After filter and rounds no filter is possible; a baseline is, on what the rounds read."""
    first = world.run("first", **SMALL)
    refused(world, "no trajectory is left for another filter", **SMALL)
    refused(world, r"trajectories 0 to 2 .* training\.skip_trajectories=3", **BASELINE)
    refused(world, "skip_trajectories=3", **BASELINE, training__skip_trajectories=2)
    world.run("baseline", **BASELINE, training__skip_trajectories=3)
    world.run("first", resume=True, **SMALL)
    reads = {entry.id: entry.event["trajectories"] for entry in world.ledger.entries()}
    run_id = first.directory.run_id
    assert reads[f"{run_id}/{FILTER}"] == [0, 3]
    assert sorted(reads.values()) == [[0, 3], [3, None], [3, None]]


def test_pools_are_refused_before_a_budget_is_asked_for(
    tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    world = Crowd(tmp_path, master, epsilon=20.0)
    world.run("first", **SMALL)
    refused(world, "no trajectory is left for another filter", **SMALL)


def test_a_budget_that_is_short_is_asked_for_both_parts_at_once(
    tmp_path: Path, master: DatasetStore
) -> None:
    with pytest.raises(BudgetError, match=r"this needs 20 and 0\.008: ask for less"):
        Crowd(tmp_path, master, epsilon=19.0).run("first", **SMALL)


def test_no_filter_draws_from_what_rounds_have_read(world: Crowd) -> None:
    world.run("baseline", **BASELINE)
    refused(world, "reads trajectories 0 and later", **ALONE)


def test_filters_one_after_the_other_have_pools_of_their_own(world: Crowd) -> None:
    world.run("first", **ALONE)
    refused(world, "filter.first_trajectory=3", **ALONE, filter__first_trajectory=2)
    world.run("second", **ALONE, filter__first_trajectory=3)
    entries = world.ledger.entries()
    assert sorted(entry.event["trajectories"] for entry in entries) == [[0, 3], [3, 6]]
    derivations = [entry.event["events"][0]["derivation"] for entry in entries]
    assert sorted(one["first_trajectory"] for one in derivations) == [0, 3]


def test_both_parts_are_held_or_none(world: Crowd) -> None:
    """A filter that fits is not charged where the rounds after it would read another's pool."""
    world.run("later", **ALONE, filter__first_trajectory=4)
    refused(world, "draws from trajectories 4 to 6", **SMALL)


def test_an_open_charge_counts(world: Crowd, monkeypatch: pytest.MonkeyPatch) -> None:
    """What crashed before its first draw holds its trajectories, too."""
    with monkeypatch.context() as patch:

        def crash(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        patch.setattr(StablePrefixes, "stable_steps", crash)
        with pytest.raises(KeyboardInterrupt):
            world.run("crashed", **ALONE)
    refused(world, "draws from trajectories 0 to 2", **ALONE)


def test_a_filter_reads_its_own_trajectories_alone(master: DatasetStore) -> None:
    everything = master.read_trajectories(DATASET)
    units = np.unique(everything.unit_ids)[:3]
    pool = StoredPool(
        root=str(master.root), dataset=DATASET, release_pool=2, max_length=99, first_trajectory=3
    )(units)
    for unit in units.tolist():
        wanted = everything.select(np.flatnonzero(everything.unit_ids == unit)[3:5])
        found = pool.select(np.flatnonzero(pool.unit_ids == unit))
        assert np.array_equal(found.observations, wanted.observations)


def test_rounds_begin_after_the_filter_s_trajectories() -> None:
    plan = ExpertMethod(config(filter__first_trajectory=1)).plan
    assert plan.filter is not None
    assert plan.rounds is not None
    assert plan.filter.trajectories == (1, 6)
    assert plan.rounds.trajectories == (6, None)
    assert plan.rounds.skip_trajectories == 6
    alone = ExpertMethod(config(filter__share=0.0, training__skip_trajectories=3)).plan
    assert alone.rounds is not None
    assert alone.rounds.skip_trajectories == 3


def test_policies_put_in_place_of_others_are_refused(world: Crowd) -> None:
    """The ledger knows those of the first filter: nobody else collected the data."""

    def interrupt(name: str, done: int, *_: Any) -> None:
        if (name, done) == ("stable prefixes", 1):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        world.run("first", progress=interrupt, **ALONE)
    (path,) = experts_folder(world.store, DATASET).glob("policies-*")
    true, content = policies_digest(world.store, DATASET), path.read_bytes()
    path.write_bytes(content[:-4] + bytes(4 * [1]))
    assert policies_digest(world.store, DATASET) != true
    with pytest.raises(UnsafeError, match="with another event"):
        world.run("first", resume=True, **ALONE)
    refused(world, "hosted other policies", **ALONE, filter__first_trajectory=3)
    path.write_bytes(content)
    world.run("first", resume=True, **ALONE)
    world.run("second", **ALONE, filter__first_trajectory=3)
