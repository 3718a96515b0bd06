"""The filter as a run of releases: what it draws, releases, keeps and takes up again."""

import stat
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.core.executor import LocalWorkerGroup
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.methods.expert.filter import (
    COUNTS_FILE,
    FilterSettings,
    SecretDraws,
    SvtFilter,
    order_key,
    read_counts,
    released_prefixes,
)
from distributed_privrl.privacy.noise import SecureNoise, SeededNoise
from distributed_privrl.privacy.sparse_vector import StablePrefixes
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.methods.expert.toy import END, Episode, trajectories
from tests.worlds.filters import (
    EXPERTS,
    LAST,
    LIKELY,
    POOL,
    Spy,
    filter_ledger,
    hosts_of,
    mechanism,
    note_draws,
    pool_of,
    private,
    server_of,
)

RARE = Episode((0, 1, 0, 1), (0, 0, 0), 1.0)
ENDS = Episode((0, 1, END), (0, 1), 1.0)
OVERSEEN = Episode((1, 1), (0,), 1.0)


def filter_of(
    folder: Path, made: StablePrefixes, key: int | None = 7, secret: bytes = bytes(32)
) -> SvtFilter:
    return SvtFilter(
        FilterSettings(
            prefixes=made,
            private=private(folder),
            secret=lambda: secret,
            insecure_key=key,
        )
    )


def run(one: SvtFilter, hosts: LocalWorkerGroup, steps: int, key: int = 1) -> Trajectories | None:
    done = len(one.lengths)
    for index in range(done, done + steps):
        one.step(index, hosts, SeededNoise(key), reserved=index)
    return one.released()


def test_stable_prefixes_are_released_and_nothing_of_the_next_step(tmp_path: Path) -> None:
    made = mechanism()
    assert made.threshold + 8 * made.query_scale < 0.9**3 * EXPERTS
    rare = filter_of(tmp_path / "rare", made)
    found = run(rare, hosts_of(pool_of(RARE, RARE, RARE, RARE)), 4)
    assert found is not None
    assert rare.lengths.tolist() == [1, 1, 1, 1]
    assert found.lengths.tolist() == [1, 1, 1, 1]
    assert found.observations[:, 0].tolist() == [0, 1] * 4
    assert found.actions.tolist() == [0] * 4
    assert found.rewards.tolist() == [0.0] * 4
    assert found.truncated.all()
    assert not found.terminated.any()
    assert found.unit_ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("episode", "terminated"), [(LIKELY, False), (ENDS, True)])
def test_whole_trajectories_end_as_they_did(
    tmp_path: Path, episode: Episode, terminated: bool
) -> None:
    found = run(filter_of(tmp_path, mechanism()), hosts_of(pool_of(*[episode] * POOL)), 3)
    assert found is not None
    steps = len(episode.actions)
    assert found.lengths.tolist() == [steps] * 3
    assert found.observations[: steps + 1, 0].tolist() == list(episode.states)
    assert found.terminated[steps - 1] == terminated
    assert found.truncated[steps - 1] == (not terminated)
    assert not found.truncated[: steps - 1].any()


def test_nothing_stable_releases_nothing(tmp_path: Path) -> None:
    one = filter_of(tmp_path, mechanism())
    assert run(one, hosts_of(pool_of(*[OVERSEEN] * POOL)), 3) is None
    assert one.lengths.tolist() == [0, 0, 0]
    assert released_prefixes(one.tensors()) is None


def test_hosts_do_not_change_the_result(tmp_path: Path) -> None:
    pool = pool_of(LIKELY, RARE, ENDS, RARE)
    one = run(filter_of(tmp_path / "1", mechanism()), hosts_of(pool), 6)
    three = run(filter_of(tmp_path / "3", mechanism()), hosts_of(pool, hosts=3), 6)
    assert one is not None
    assert three is not None
    assert (one.observations == three.observations).all()
    assert (one.offsets == three.offsets).all()


@pytest.fixture(autouse=True)
def _noted(monkeypatch: pytest.MonkeyPatch) -> None:
    note_draws(monkeypatch)


def test_hosts_are_told_states_and_actions_and_not_whose(tmp_path: Path) -> None:
    spy = Spy(hosts_of(pool_of(*[LIKELY] * POOL), hosts=3), [])
    run(filter_of(tmp_path, mechanism()), spy, 2)  # type: ignore[arg-type]
    assert len(set(spy.drawn)) == 2
    assert {name for name, told in spy.told if not told} == {"describe", "built_from", "units"}
    counted = [told for name, told in spy.told if told]
    assert len(counted) == 2
    for told in counted:
        assert set(told) == {"observations", "actions"}
        assert told["observations"][:, 0].tolist() == list(LIKELY.states)
        assert told["actions"].tolist() == list(LIKELY.actions)


def test_after_a_crash_no_trajectory_is_used_twice(tmp_path: Path) -> None:
    made, spy = mechanism(), Spy(hosts_of(pool_of(*[LIKELY] * POOL)), [])
    one = filter_of(tmp_path, made)
    for index in range(3):
        saved = one.tensors()
        one.step(index, spy, SeededNoise(1), reserved=index)  # type: ignore[arg-type]
    again = filter_of(tmp_path, made)
    again.restore(saved, 2)  # the third draw is in no checkpoint
    for index in range(2, 5):
        again.step(index, spy, SeededNoise(1), reserved=index + 1)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="paid for"):
        again.step(5, spy, SeededNoise(1), reserved=6)  # type: ignore[arg-type]
    assert len(spy.drawn) == 6
    assert len(set(spy.drawn)) == 6
    whole = Spy(spy.group, [])
    run(filter_of(tmp_path / "whole", made), whole, 6)  # type: ignore[arg-type]
    assert whole.drawn == spy.drawn


def test_an_expert_drawn_again_gives_its_next_trajectory_until_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SecretDraws, "order", lambda *_: np.zeros(6, np.int64))
    few = mechanism(draws=6)
    spy = Spy(hosts_of(pool_of(*[LIKELY] * POOL)), [])
    one = filter_of(tmp_path, few)
    run(one, spy, 6)  # type: ignore[arg-type]
    assert spy.drawn == [(0, number) for number in range(6)]
    assert one.lengths.tolist() == [3, 3, 3, 3, 0, 0]
    assert len(one.released() or ()) == len(read_counts(tmp_path / "private")) == POOL


def test_every_draw_asks_the_hosts_for_as_much(tmp_path: Path) -> None:
    """Neither a trajectory's length nor a pool that is used up nor a lack of experts shows."""
    asked: set[tuple[Any, ...]] = set()
    calls, noises = [], []

    class Asked(Spy):
        def call(self, method: str, shared: Any = None, per_worker: Any = None) -> list[Any]:
            if method == "prefix_counts":
                states, actions = shared["observations"], shared["actions"]
                asked.add((states.shape, states.dtype, actions.shape, actions.dtype))
                calls.append(method)
            return super().call(method, shared, per_worker)

    class Noted(SeededNoise):
        def add_discrete_laplace(self, value: Any, **options: Any) -> Any:
            noises.append(len(value))
            return super().add_discrete_laplace(value, **options)

    pools = (pool_of(*[ENDS] * POOL), pool_of(*[LIKELY] * POOL, experts=1), trajectories([], []))
    for name, pool in enumerate(pools):
        one = filter_of(tmp_path / str(name), mechanism())
        for index in range(6):
            asked_hosts = Asked(hosts_of(pool), [])
            one.step(index, asked_hosts, Noted(1), reserved=index)  # type: ignore[arg-type]
    assert len(calls) == 18
    assert asked == {((4, 1), np.dtype(np.float32), (3,), np.dtype(np.int64))}
    assert noises == [1, 3] * 18


@pytest.mark.parametrize("live", [[0], []])
def test_experts_without_trajectories_lend_no_counts(tmp_path: Path, live: list[int]) -> None:
    """Of 300 hosted policies one or none has trajectories: nothing may come out."""
    pool = trajectories([LIKELY] * POOL * len(live), [unit for unit in live for _ in range(POOL)])
    for key in range(3):
        one = filter_of(tmp_path / str(key), mechanism(), key=key)
        assert run(one, hosts_of(pool), 4, key=key) is None


@pytest.mark.parametrize("bad", [True, False])
def test_a_bad_row_costs_a_trajectory_what_follows_and_no_expert(tmp_path: Path, bad: bool) -> None:
    """Experts whose trajectories break the environment count for all others as before."""
    pool = pool_of(*[LIKELY] * POOL)
    if bad:
        pool.observations[2::4] = np.nan  # the state after each second step
    one = filter_of(tmp_path, mechanism())
    run(one, hosts_of(pool), 4)
    assert one.lengths.tolist() == [1 if bad else 3] * 4
    pool.observations[0::4] = np.nan
    nothing = filter_of(tmp_path / "nothing", mechanism())
    assert run(nothing, hosts_of(pool), 4) is None


def test_no_expert_at_all_releases_nothing(tmp_path: Path) -> None:
    one = filter_of(tmp_path, mechanism())
    assert run(one, hosts_of(trajectories([], [])), 6) is None
    assert one.lengths.tolist() == [0] * 6


def test_experts_that_cannot_be_drawn_are_not() -> None:
    live = np.array([3, 5, 8])
    order = SecretDraws(order_key(bytes(32)), draws=3000)
    draws = [order.draw(index, live) for index in range(60)]
    assert {draw.expert for draw in draws} == {3, 5, 8}
    counted: dict[int | None, int] = {}
    for draw in draws:
        assert draw.number == counted.get(draw.expert, 0)
        counted[draw.expert] = draw.number + 1
    assert order.draw(7, live) == draws[7]


def test_experts_are_drawn_uniformly_and_independently() -> None:
    """Chi-squares of single draws and of pairs, within and across keys, both ways."""
    draws, keys = 100, 50
    found = [
        SecretDraws(order_key(bytes([key] * 32)), draws=draws).order(np.arange(10))
        for key in range(keys)
    ]
    table = np.array(found)
    for cells, numbers in (
        (10, table),
        (100, table[:, :-1] * 10 + table[:, 1:]),
        (100, table[:-1] * 10 + table[1:]),
    ):
        counts = np.bincount(numbers.ravel(), minlength=cells)
        expected = numbers.size / cells
        statistic = ((counts - expected) ** 2 / expected).sum()
        freedom = cells - 1
        assert abs(statistic - freedom) < 5 * np.sqrt(2 * freedom)
        assert statistic > 0.1 * freedom


def test_raw_counts_lie_in_a_private_file_alone(tmp_path: Path) -> None:
    one = filter_of(tmp_path, mechanism(), key=None)
    run(one, hosts_of(pool_of(*[RARE] * POOL)), 2)
    folder = tmp_path / "private"
    assert [path.name for path in folder.iterdir()] == [COUNTS_FILE]
    assert stat.S_IMODE((folder / COUNTS_FILE).stat().st_mode) == 0o600
    kept = read_counts(folder)
    assert sorted(kept) == [0, 1]
    counts, steps = kept[0]
    assert steps == 1
    assert counts == pytest.approx(EXPERTS * np.array([0.9, 0.09, 0.081]), rel=1e-3)
    assert set(one.tensors()) == {
        "lengths", "observations", "actions", "rewards", "terminated", "truncated", "offsets",
    }  # fmt: skip
    assert read_counts(tmp_path / "nowhere") == {}


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    hosts, made = hosts_of(pool_of(*[LIKELY] * POOL)), mechanism()
    one = filter_of(tmp_path, made)
    with pytest.raises(UnsafeError, match="noise"):
        one.step(0, hosts, None, reserved=0)
    with pytest.raises(UnsafeError, match="reserved"):
        one.step(0, hosts, SeededNoise(1))
    with pytest.raises(ConfigError, match="index must be 0"):
        one.step(1, hosts, SeededNoise(1), reserved=1)
    run(one, hosts, 2)
    with pytest.raises(ConfigError, match="3 draws"):
        filter_of(tmp_path, made).restore(one.tensors(), 3)
    unlike = {**one.tensors(), "lengths": torch.tensor([3, 0])}
    with pytest.raises(ConfigError, match="as many steps"):
        filter_of(tmp_path, made).restore(unlike, 2)


@pytest.mark.parametrize("key", [7, None])
def test_the_order_is_the_secret_s_or_that_of_the_test_key(tmp_path: Path, key: int | None) -> None:
    hosts, made = hosts_of(pool_of(*[LIKELY] * POOL)), mechanism()
    drawn = []
    for secret in (bytes(32), bytes(32), bytes([1] * 32)):
        spy = Spy(hosts, [])
        run(filter_of(tmp_path, made, key=key, secret=secret), spy, 6)  # type: ignore[arg-type]
        drawn.append(spy.drawn)
    assert drawn[0] == drawn[1]
    assert (drawn[0] == drawn[2]) == (key is not None)


class DiedError(Exception):
    pass


class Mortal(Spy):
    """Dies when a trajectory was drawn and its counts are asked for, once."""

    alive = True

    def call(self, method: str, shared: Any = None, per_worker: Any = None) -> list[Any]:
        if method == "prefix_counts" and len(self.drawn) == 2 and self.alive:
            self.alive = False
            self.drawn += LAST
            raise DiedError
        return super().call(method, shared, per_worker)


def test_a_settled_filter_has_no_order_any_more(tmp_path: Path) -> None:
    made = mechanism(draws=6)
    ledger = filter_ledger(tmp_path, made)
    hosts = hosts_of(pool_of(*[LIKELY] * POOL))
    server_of(tmp_path, made, hosts, ledger, steps=4, key=None).advance(4)
    ledger.settle("run-toy/filter", reserved_rounds=4, epsilon=15.0, delta=1e-5)
    again = filter_of(tmp_path, made, key=None)
    settings = replace(again.settings, secret=partial(ledger.secret, "run-toy/filter"))
    with pytest.raises(UnsafeError, match="erased"):
        SvtFilter(settings).step(0, hosts, SeededNoise(1), reserved=4)


def test_a_run_of_the_server_is_charged_draw_by_draw_and_survives_a_crash(tmp_path: Path) -> None:
    made = mechanism(draws=6)
    ledger = filter_ledger(tmp_path, made)
    mortal = Mortal(hosts_of(pool_of(*[LIKELY] * POOL)), [])
    server = server_of(tmp_path, made, mortal, ledger, steps=5, key=None)
    with pytest.raises(DiedError):
        server.advance(5)
    again = server_of(tmp_path, made, mortal, ledger, steps=5, key=None)
    assert again.progress().round_index == 2
    assert again.advance(5).round_index == 5
    entry = ledger.reserved("run-toy/filter")
    assert entry is not None
    assert entry.reserved_rounds == 6
    assert len(mortal.drawn) == len(set(mortal.drawn)) == 6
    tensors, _ = load_checkpoint(
        tmp_path / "filter.safetensors", run_id="run-toy/filter", stage="rounds"
    )
    found = released_prefixes(tensors)
    assert found is not None
    assert found.lengths.tolist() == [3] * 5


def test_a_secure_source_serves(tmp_path: Path) -> None:
    one = filter_of(tmp_path, mechanism(), key=None)
    source = SecureNoise()
    for index in range(3):
        one.step(index, hosts_of(pool_of(*[LIKELY] * POOL)), source, reserved=index)
    assert one.lengths.tolist() == [3, 3, 3]
