"""A finished run of the expert level: certificate, charges, pools, and what it must not show."""

import json
import stat
from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import ConfigError, VerificationError
from distributed_privrl.data.metadata import CERTIFICATE_KEY, SEAM_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.cards import SYNTHETIC_KEY
from distributed_privrl.experiments.clearance import release_of
from distributed_privrl.experiments.publishing import RUN_KEY
from distributed_privrl.methods.expert.config import ReturnRange
from distributed_privrl.methods.expert.facts import AgentFacts
from distributed_privrl.methods.expert.filter import order_key
from distributed_privrl.methods.expert.hosting import ExpertHost, HostSpec
from distributed_privrl.methods.expert.prefix_plan import FILTER
from distributed_privrl.methods.expert.report import (
    expert_returns,
    references_of,
)
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.certificate import digest_of
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import Relation
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.worker import WorkerSpec
from tests.gates import leaks
from tests.gates.leak_secrets import Secrets
from tests.worlds.crowd import DATASET, EXPERTS, TRAJECTORIES, Crowd, config
from tests.worlds.opened import opened
from tests.worlds.swings import files_outside_private
from tests.worlds.watching import watch

STABLE = "crowd/stable-v0"
POOL = 5


@dataclass
class Watched:
    """A finished run, and what was seen on the way."""

    world: Crowd
    result: Any = None
    gaussian_draws: int = 0
    secrets: Secrets | None = None
    workers: list[WorkerSpec] = field(default_factory=list)
    hosts: list[HostSpec] = field(default_factory=list)
    said: str = ""
    kept_secret: dict[str, bytes] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return Path(self.result.directory.path)


def tables(facts: AgentFacts, store: DatasetStore, dataset: str) -> Any:
    """Return a dataset's rows, raw and encoded."""
    rows = store.read_transitions(dataset, unit="transition")
    raw, _ = facts.encoder.layout.to_rows(rows)
    return raw.astype(np.float32), facts.encoder.encode(rows).rows


def states(store: DatasetStore) -> np.ndarray:
    """Return the released states, the last ones too, before the next tensor's zero or one."""
    found = store.read_trajectories(STABLE).observations.astype(np.float32)
    ends = [np.full((len(found), 1), value, np.float32) for value in (0, 1)]
    return np.concatenate([np.hstack([found, end]) for end in ends])


@pytest.fixture(scope="module")
def finished(master: DatasetStore, tmp_path_factory: pytest.TempPathFactory) -> Watched:
    """Run once with secure noise and reports."""
    with pytest.MonkeyPatch.context() as patch:
        seen = Watched(Crowd(tmp_path_factory.mktemp("finished"), master))
        store, settings = seen.world.store, seen.world.config()
        facts = AgentFacts.of(settings.model, settings.data, store, seed=settings.seed)
        everything = tables(facts, store, DATASET)
        secrets = Secrets(rows=everything, public=())
        noted: dict[str, list[Any]] = defaultdict(list)
        watch(patch, secrets, noted)
        draw, start = PrivateRound.add_noise, ExpertHost.__init__

        def drawn(*arguments: Any, **keywords: Any) -> Any:
            seen.gaussian_draws += 1
            return draw(*arguments, **keywords)

        def hosted(self: ExpertHost, spec: HostSpec) -> None:
            seen.hosts.append(spec)
            start(self, spec)

        patch.setattr(PrivateRound, "add_noise", drawn)

        read = Ledger.secret

        def secret(self: Ledger, entry_id: str) -> bytes:
            seen.kept_secret[entry_id] = read(self, entry_id)
            return seen.kept_secret[entry_id]

        patch.setattr(ExpertHost, "__init__", hosted)
        patch.setattr(Ledger, "secret", secret)
        said: list[str] = []
        seen.result = seen.world.run(
            key=None,
            output__dataset=STABLE,
            evaluation={
                "episodes": 3,
                "max_steps": 40,
                "reference_returns": {"low": 20, "high": 60},
                "baselines": {"dp_sgd": 21.5},
            },
            progress=lambda *told: said.append(" ".join(map(str, told))),
        )
        seen.workers = noted["workers"]
        seen.said = "\n".join(said)
        seen.secrets = replace(secrets, public=(*tables(facts, store, STABLE), states(store)))
    return seen


def test_the_certificate_states_both_parts_in_one_account(finished: Watched) -> None:
    folder = finished.folder
    checked = verify_certificate(
        folder / "certificate.json", ledger=finished.world.ledger, outputs_root=folder
    )
    certificate = checked.certificate
    assert certificate.status == "valid"
    assert sorted(checked.outputs_checked) == ["policy.pt", "policy.safetensors"]
    stable, rounds = certificate.stages
    assert (stable.name, rounds.name) == (FILTER, "rounds")
    for stage in (stable, rounds):
        assert (stage.unit, stage.relation, stage.units) == ("expert", "policy_level", EXPERTS)
    assert stable.delta + rounds.delta == pytest.approx(0.02)
    costs = [
        epsilon(stage.events, delta=stage.delta, relation=Relation.POLICY_LEVEL)
        for stage in certificate.stages
    ]
    assert costs[0] <= 15 < 1.6 * costs[0]
    assert costs[1] <= 5 < 1.6 * costs[1]
    assert certificate.epsilon == pytest.approx(sum(costs), rel=1e-6)
    run_id = finished.result.directory.run_id
    entries = {entry.id: entry.epsilon for entry in finished.world.ledger.entries()}
    assert set(entries) == {run_id, f"{run_id}/{FILTER}"} == set(certificate.ledger_entries)


def test_the_prefixes_certificate_is_in_the_ledger(finished: Watched) -> None:
    """The run's entries know it, and refuse a rewrite of it that is consistent in itself."""
    store, values = finished.world.store, finished.world.store.info(STABLE).certificate
    path = finished.world.folder / "stable.json"

    def checked() -> Any:
        path.write_text(json.dumps(values))
        return verify_certificate(path, ledger=finished.world.ledger, outputs_root=store.root)

    found = checked()
    assert found.ledger_checked
    assert found.certificate.ledger_entries == (f"{finished.result.directory.run_id}/{FILTER}",)
    values["created"] = "2020-01-01T00:00:00+00:00"
    values["digest"] = digest_of(values)
    with pytest.raises(VerificationError, match="another certificate for entry"):
        checked()


def test_the_certificate_names_what_is_assumed(finished: Watched) -> None:
    stable, rounds = finished.result.certificate.stages
    assert {
        "hosted_policies_collected_the_data",
        "release_pool_trajectories_are_fresh_draws_used_by_no_other_run",
        "minimum_probability_max_length_and_pool_sizes_are_public",
    } <= set(stable.assumptions)
    assert "float64_lattice_noise" not in stable.assumptions, "its noise is exact integers"
    assert {
        "adam_moments_and_target_network_post_process_noisy_steps",
        "pools_split_by_trajectory_index",
        "float64_lattice_noise",
    } <= set(rounds.assumptions)


def test_what_the_prefixes_say_of_themselves_is_known(finished: Watched) -> None:
    said = opened(finished.world.store.info(STABLE).metadata)
    assert set(said) <= {
        *("description", "algorithm_name", SYNTHETIC_KEY),
        *(RUN_KEY, CERTIFICATE_KEY, SEAM_KEY),
    }


@pytest.mark.parametrize(
    ("evaluation", "environment", "expected"),
    [
        ({}, "CartPole-v1", None),
        ({"reference_returns": {"low": 20, "high": 60}}, "CartPole-v1", (20, 60)),
        ({}, "privrl/Maze2D-umaze-v0", (49.98, 228.61)),
        ({"max_steps": 10}, "privrl/Maze2D-umaze-v0", None),
        ({"reference_returns": {"low": 1, "high": 2}}, "privrl/Maze2D-umaze-v0", (1, 2)),
        ({"reference_returns": {"low": 1, "high": 2}}, None, (1, 2)),
        ({}, None, None),
    ],
)
def test_returns_are_normalised_by_declared_or_registered_references(
    evaluation: dict[str, Any], environment: str | None, expected: Any
) -> None:
    found = references_of(config(evaluation=evaluation, data__environment=environment))
    assert (found and (found[0].low, found[0].high)) == expected


def test_references_must_be_apart() -> None:
    assert ReturnRange(low=10.0, high=50.0).share_of(30.0) == 0.5
    for high in (10.0, 9.0, float("nan")):
        with pytest.raises(ConfigError, match="reference_returns"):
            config(evaluation__reference_returns={"low": 10.0, "high": high})


@pytest.mark.parametrize("best", [40.0, 31.5])
def test_what_the_experts_data_say_of_returns_is_in_no_report(
    best: float, tmp_path: Path, master: DatasetStore
) -> None:
    """The exact return of the best sensitive expert was shown, as what counts as 1."""
    world = Crowd(tmp_path, master)
    said = {"random": 20.0, "best": best, "steps": 40}
    world.store.update_metadata(DATASET, {"evaluation_returns": said, "reference_returns": said})
    world.run(key=None, evaluation={"episodes": 1, "max_steps": 40})
    told = [
        (tmp_path / "run" / name).read_text()
        for name in (
            "report.json",
            "report.html",
            "evaluation.json",
            "checkpoint/expert_facts.json",
        )
    ]
    assert not any("normalised" in text for text in told)
    kept = json.loads(told[-1])
    assert set(kept) == {"lengths", "lengths_ledger_entry"}
    facts, returns = json.loads(told[-2])
    assert (facts, set(returns)) == ({"kind": "facts", **kept}, {"kind", "returns"})


def test_there_are_as_many_gaussian_draws_as_rounds_in_the_ledger(finished: Watched) -> None:
    """Noiseless steps draw nothing, and what is charged is q = |B| / m, no coin's share of it."""
    entry = finished.world.ledger.reserved(finished.result.directory.run_id)
    assert entry is not None
    (event,) = finished.result.certificate.stages[1].events
    assert finished.gaussian_draws == entry.reserved_rounds == entry.committed_rounds == 6
    assert (event.kind, event.count) == ("poisson_gaussian", 6)
    assert event.sampling_probability == 0.5
    assert {spec.sampling_probability for spec in finished.workers} == {0.5}
    draws = finished.world.ledger.reserved(f"{finished.result.directory.run_id}/{FILTER}")
    assert draws is not None
    assert draws.committed_rounds == draws.reserved_rounds == 4


def test_the_two_parts_read_different_trajectories(finished: Watched) -> None:
    """Pool A is each expert's first trajectories, pool B the others; together they are all."""
    whole = finished.world.store.read_trajectories(DATASET)
    first = np.arange(len(whole)) % TRAJECTORIES < POOL
    pools = [spec.pool(np.unique(whole.unit_ids)) for spec in finished.hosts[:1]]
    (pool,) = pools
    assert len(pool) == EXPERTS * POOL
    assert np.array_equal(pool.observations, whole.select(np.flatnonzero(first)).observations)
    later = whole.select(np.flatnonzero(~first)).transitions("expert")
    settings = finished.world.config()
    facts = AgentFacts.of(settings.model, settings.data, finished.world.store, seed=0)
    wanted = facts.encoder.encode(later).rows
    for spec in finished.workers:  # each keeps the experts of its blocks
        shard = spec.source()
        assert len(shard.rows) == len(wanted)
        assert np.array_equal(np.sort(shard.rows, axis=0), np.sort(wanted, axis=0))
        assert len(shard.unit_ids) == EXPERTS


def test_the_stable_prefixes_are_a_dataset_with_a_certificate_of_their_own(
    finished: Watched,
) -> None:
    store = finished.world.store
    info = store.info(STABLE)
    assert info.unit_column is None
    release = release_of(store, STABLE)
    assert release is not None
    certificate = release.certificate
    assert certificate is not None
    (stage,) = certificate.stages
    assert (stage.name, stage.relation) == (FILTER, "policy_level")
    assert certificate.epsilon is not None
    assert certificate.epsilon < finished.result.certificate.epsilon
    assert certificate.ledger_entries == (f"{finished.result.directory.run_id}/{FILTER}",)
    stable, whole = store.read_trajectories(STABLE), store.read_trajectories(DATASET)
    starts = whole.offsets[:-1] + np.arange(len(whole))
    for one in range(len(stable)):
        prefix = stable.select([one])
        (source,) = np.flatnonzero(
            (whole.observations[starts] == prefix.observations[0]).all(axis=1)
        )
        walked = whole.select([source])
        steps = len(prefix.actions)
        assert np.array_equal(prefix.observations, walked.observations[: steps + 1])
        assert np.array_equal(prefix.actions, walked.actions[:steps])
        assert source % TRAJECTORIES < POOL


def test_nothing_that_may_leave_holds_a_secret(finished: Watched) -> None:
    """No bytes of a row that was not released, a key, who took part, or a sum before noise."""
    assert finished.secrets is not None
    fragments = list(finished.secrets.fragments())
    assert {what for what, _ in fragments} >= {"a key", "positions", "a partial sum"}
    assert len(finished.secrets.pairs) > 1000
    (name,) = [name for name in finished.kept_secret if name.endswith("/filter")]
    order = order_key(finished.kept_secret[name])
    for what, key in (("an order of draws", order), *finished.kept_secret.items()):
        fragments += [(what, key[:16]), (what, key.hex().encode())]
    contents = {
        name: (finished.folder / name).read_bytes()
        for name in files_outside_private(finished.folder)
    }
    assert len(contents) == 16
    for name, content in {**contents, "what was said": finished.said.encode()}.items():
        assert not leaks.holds_words(content, finished.secrets.words), name
        for what, fragment in fragments:
            assert fragment not in content, f"{name} holds {what}"
    assert "loss" not in finished.said
    assert "count" not in finished.said


def test_what_is_raw_lies_in_private_for_its_owner_alone(finished: Watched) -> None:
    private = finished.folder / "private"
    assert stat.S_IMODE(private.stat().st_mode) == 0o700
    names = {path.name for path in private.iterdir()}
    assert names == {
        "NOT_FOR_RELEASE.txt",
        "prefix_counts.json",
        "experts.html",
        "experts.json",
    }
    assert {stat.S_IMODE(path.stat().st_mode) for path in private.iterdir()} == {0o600}
    shown = json.loads((private / "experts.json").read_text())
    assert shown["not_for_release"]
    assert [section["title"] for section in shown["sections"]] == [
        "What the experts earn",
        "Counts against the threshold",
    ]


def test_the_report_shows_returns_budget_and_prefixes(finished: Watched) -> None:
    sections = {
        section["title"]: {metric["name"]: metric["value"] for metric in section["metrics"]}
        for section in json.loads((finished.folder / "report.json").read_text())["sections"]
    }
    earned = sections["What the policy earns in CartPole-v1"]
    assert 1 <= earned["mean return of the policy"] <= 40
    assert earned["normalised return"] == pytest.approx(
        (earned["mean return of the policy"] - 20) / 40
    )
    assert earned["return of dp_sgd, for comparison"] == 21.5
    budget = sections["How the budget is split"]
    assert budget["epsilon of the stable prefixes"] == 15
    assert budget["delta of the private rounds"] == pytest.approx(0.002)
    stable = finished.world.store.read_trajectories(STABLE)
    released = sections["What the filter released"]
    assert released["stable prefixes"] == len(stable) > 0
    assert released["released steps"] == len(stable.actions)


def test_the_policy_is_a_file_of_its_own_and_acts_as_its_script(finished: Watched) -> None:
    policy = Policy.load(finished.folder / "policy.safetensors")
    states = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    script = torch.jit.load(str(finished.folder / "policy.pt"))  # type: ignore[no-untyped-call]
    assert script(torch.from_numpy(states)).numpy().tolist() == policy.act(states).tolist()


def test_returns_of_experts_by_hand(tmp_path: Path, master: DatasetStore) -> None:
    found = expert_returns(master, DATASET, "expert")
    lengths = master.read_trajectories(DATASET).lengths.reshape(EXPERTS, TRAJECTORIES)
    assert found.tolist() == pytest.approx(lengths.mean(axis=1).tolist())
