"""PATE-GAN through the whole program: charge, votes, crash, resume, certificate, attack."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from distributed_privrl.core.errors import BudgetError, ConfigError, UnsafeError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.registry import method_named, plan_run
from distributed_privrl.methods.pate_gan.game import Game, Pair
from distributed_privrl.methods.pate_gan.method import CHECKPOINT, PateGanMethod
from distributed_privrl.methods.pate_gan.plan import VotePlan
from distributed_privrl.methods.pate_gan.pretraining import PRETRAINED, pretrained
from distributed_privrl.methods.pate_gan.program import VotesProgram, VotesSpec
from distributed_privrl.methods.pate_gan.teachers import TeacherWorker
from distributed_privrl.methods.pate_gan.votes import VoteRelease
from distributed_privrl.privacy.units import Relation
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.checkpoint import load_checkpoint
from tests.worlds.games import PUBLIC, RELEASED, SPARE, STEPS, TEACHERS, VOTES, Games, game_store
from tests.worlds.intake import DATASET, admissions, write


class Killed(BaseException):
    """Ends a run as a kill does."""


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> DatasetStore:
    return game_store(tmp_path_factory.mktemp("master") / "datasets")


@pytest.fixture
def world(tmp_path: Path, master: DatasetStore) -> Games:
    return Games(tmp_path, master).budget()


def released(world: Games, dataset: str = RELEASED) -> np.ndarray[Any, Any]:
    rows = world.store.read_transitions(dataset, unit="transition")
    return np.column_stack([rows.observations, rows.actions, rows.rewards, rows.next_observations])


def run_id(world: Games) -> str:
    (entry,) = world.ledger.entries()
    return entry.id


def kept(world: Games) -> dict[str, torch.Tensor]:
    path = world.folder / "run" / "checkpoint" / CHECKPOINT
    return load_checkpoint(path, run_id=run_id(world), stage="rounds")[0]


@pytest.mark.parametrize("taught", [False, True])
def test_a_run_ends_in_rows_and_a_certificate_of_all_its_votes(
    world: Games, *, taught: bool
) -> None:
    result = world.run(key=None, taught=taught)
    certificate = verify_certificate(
        result.directory.certificate, ledger=world.ledger, outputs_root=world.store.root
    ).certificate
    (stage,) = certificate.stages
    (event,) = stage.events
    assert (stage.name, event.kind, event.count) == ("votes", "discrete_gaussian", STEPS * VOTES)
    assert 0.8 * 4 < certificate.epsilon < 4.0  # the spare step was not needed
    plan = plan_run(world.config(taught=taught))
    assert (plan.rounds, plan.max_rounds) == (STEPS, STEPS + SPARE)
    assert 0.99 * 4 < plan.epsilon(plan.max_rounds, certified=True) <= 4.0
    rows = released(world)
    assert rows.shape == (150, 6)
    assert np.isfinite(rows).all()
    assert len(np.unique(rows[:, 0])) > 100
    assert set(np.unique(rows[:, 2])) <= {1, 2, 3}


@pytest.mark.parametrize("workers", [1, 4])
def test_workers_do_not_change_the_rows(world: Games, workers: int) -> None:
    world.run("two")
    world.run("other", runtime__workers=workers, output__dataset="intake/other-v0")
    np.testing.assert_array_equal(released(world), released(world, "intake/other-v0"))


def test_a_finished_run_that_is_resumed_draws_nothing(
    world: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = world.run()
    rows = released(world)

    def refused(*_: Any, **__: Any) -> None:
        raise AssertionError("a finished run asks teachers")

    monkeypatch.setattr(TeacherWorker, "votes", refused)
    again = world.run(resume=True)
    assert again.certificate == first.certificate
    np.testing.assert_array_equal(released(world), rows)


def killed(world: Games, patch: pytest.MonkeyPatch, where: Callable[[int], bool]) -> None:
    """Run until a step for which ``where`` holds has drawn its noise, and die before it is kept."""
    right = VotesProgram.step

    def step(self: VotesProgram, index: int, *rest: Any, **named: Any) -> None:
        right(self, index, *rest, **named)
        if where(index):
            raise Killed

    with patch.context() as local:
        local.setattr(VotesProgram, "step", step)
        with pytest.raises(Killed):
            world.run()


def test_a_killed_run_teaches_again_and_ends_in_the_same_rows(
    world: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that was drawn and lost is asked again, of the same rows, and paid for anew."""
    world.run("undisturbed", output__dataset="intake/other-v0")
    learned = []
    killed(world, monkeypatch, lambda index: index == 3)
    right = TeacherWorker.learn

    def learn(self: TeacherWorker, step: int, fakes: Any) -> None:
        learned.append(step)
        right(self, step, fakes)

    monkeypatch.setattr(TeacherWorker, "learn", learn)
    result = world.run(resume=True)
    assert learned[:6] == [0, 0, 1, 1, 2, 2], "two workers' teachers learn what was before"
    entry = world.ledger.reserved(result.directory.run_id)
    assert entry is not None
    assert (entry.reserved_rounds, entry.drawn_rounds) == (STEPS + 1, STEPS + 1)
    (event,) = result.certificate.stages[0].events
    assert event.count == (STEPS + 1) * VOTES, "the lost step's noise was drawn: it is certified"
    # The noise of tests is the same for the same step, whenever it is drawn.
    np.testing.assert_array_equal(released(world), released(world, "intake/other-v0"))


def test_kills_before_a_step_is_reserved_cost_nothing(
    world: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Game.lesson

    def lesson(self: Game) -> Any:
        if self.learned == 2:
            raise Killed
        return right(self)

    with monkeypatch.context() as patch:
        patch.setattr(Game, "lesson", lesson)
        with pytest.raises(Killed):
            world.run()
    assert world.ledger.entries()[0].reserved_rounds == 2
    world.run(resume=True)
    (entry,) = world.ledger.entries()
    assert (entry.reserved_rounds, entry.drawn_rounds) == (STEPS, STEPS)


def test_more_kills_than_spare_steps_leave_fewer_votes_and_at_last_none(
    world: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    def every(_: int) -> bool:
        return True

    killed(world, monkeypatch, every)
    right = world.run

    def again(name: str = "run", **changes: Any) -> Any:
        return right(name, **(changes | {"resume": True}))

    monkeypatch.setattr(world, "run", again)
    for _ in range(STEPS + SPARE - 1):
        killed(world, monkeypatch, every)
    with pytest.raises(BudgetError, match="used up all steps before a vote was kept"):
        world.run()


def test_other_rows_with_the_same_answers_make_the_same_generator(
    tmp_path: Path, master: DatasetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So nothing but the answers moves it: no gradient of a teacher, no row."""
    world, found = Games(tmp_path, master).budget(), []
    others = admissions(seed=44)
    others = replace(others, unit_ids=others.unit_ids + np.uint64(10**7))
    write(world.store, "intake/second-v0", others)
    world.budget("intake/second-v0")
    answers = np.random.default_rng(5).integers(0, TEACHERS, (STEPS, VOTES))
    asked: list[np.ndarray[Any, Any]] = []

    def release(self: VoteRelease, counts: Any, source: Any, *, tag: int) -> Any:
        asked.append(counts)
        return answers[tag]

    monkeypatch.setattr(VoteRelease, "release", release)
    for number, dataset in enumerate((DATASET, "intake/second-v0")):
        output = f"intake/made-{number}-v0"
        world.run(dataset[7:], data__sensitive=dataset, output__dataset=output)
        found.append(released(world, output))
    assert any(
        (one != other).any() for one, other in zip(asked[:STEPS], asked[STEPS:], strict=True)
    )
    np.testing.assert_array_equal(*found)


def test_pretraining_is_kept(world: Games) -> None:
    """The game begins with the networks that public rows taught, teachers included."""
    world.run(taught=True)
    config = world.config(taught=True)
    context = world.context(run_id(world), folder=world.folder / "run" / "checkpoint")
    method = PateGanMethod(config)
    spec = method.game(method.check(context), context)
    game, start = Game(spec), pretrained(context)
    assert start["generator.steps"] == config.training.pretraining.steps  # type: ignore[union-attr]
    for name in ("generator", "student"):
        parameters = getattr(game.pair, name).parameters.vector
        assert torch.equal(parameters, start[f"{name}.parameters"])
        fresh = getattr(Game(replace(spec, start=None)).pair, name).parameters.vector
        assert not torch.equal(parameters, fresh)
    assert torch.equal(spec.student, start["student.parameters"])  # type: ignore[arg-type]
    # Votes moved both on from there, and the release is near what public rows taught.
    ended = kept(world)
    moved = (ended["generator.ema"] - start["generator.ema"]).norm()
    apart = (
        Game(replace(spec, start=None)).pair.generator.optimiser.ema - start["generator.ema"]
    ).norm()
    assert 0 < moved < 0.3 * apart


def test_pretrained_rows_look_like_public_ones(world: Games) -> None:
    public = world.store.read_transitions(PUBLIC, unit="transition").observations
    world.run("taught", taught=True, training__pretraining__steps=400)
    near = released(world)[:, :2]
    world.run("fresh", output__dataset="intake/fresh-v0")
    far = released(world, "intake/fresh-v0")[:, :2]
    off = [np.abs(one.mean(axis=0) - public.mean(axis=0)).sum() for one in (near, far)]
    assert off[0] < 0.7 * off[1]


def test_a_killed_pretraining_goes_on(world: Games, monkeypatch: pytest.MonkeyPatch) -> None:
    world.run("undisturbed", taught=True, output__dataset="intake/other-v0")
    monkeypatch.setattr("distributed_privrl.methods.pate_gan.pretraining.CHECKPOINT_EVERY", 20)
    right, calls = Pair.teach_generator, []

    def teach(self: Pair, normals: Any) -> None:
        calls.append(1)
        if len(calls) == 50:
            raise Killed
        right(self, normals)

    with monkeypatch.context() as patch:
        patch.setattr(Pair, "teach_generator", teach)
        with pytest.raises(Killed):
            world.run(taught=True)
    assert world.folder.joinpath("run", "checkpoint", PRETRAINED).exists()
    world.run(taught=True, resume=True)
    np.testing.assert_array_equal(released(world), released(world, "intake/other-v0"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy__epsilon": 0.05}, "pays for 0 steps of 4 votes, and 2 are needed"),
        ({"privacy__accountant": "rdp"}, "does not know integer Laplace noise"),
        ({"runtime__workers": 5}, "blocks of teachers 4"),
        ({"runtime__blocks": 14}, "model.teachers=13"),
        ({"data__bounds": None}, "columns have no bounds"),
        ({"runtime__gpus_per_worker": 1}, "wait for the next one"),
        ({"runtime__pretrained": "kept"}, "keeps no pre-training"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(
    world: Games, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        world.run(**changes)
    assert not world.ledger.entries()


def test_pretraining_needs_public_rows(world: Games) -> None:
    with pytest.raises(ConfigError, match="name a public dataset, or take method pate_gan"):
        world.config(taught=True, data__public=[])


def test_other_settings_do_not_take_up_votes_on_other_rows(world: Games) -> None:
    config = world.config()
    game = method_named("pate_gan").declare(config)
    spec = game.game(game.check(world.context()), world.context())
    program, other = (VotesSpec(game=one, release=None)() for one in (spec, replace(spec, seed=9)))
    with pytest.raises(UnsafeError, match="not those that the votes were on"):
        other.restore(program.tensors(), 0)


def test_without_privacy_votes_are_exact_and_everything_is_private(world: Games) -> None:
    result = world.run(privacy__epsilon=None)
    assert result.certificate.status == "non_private"
    assert not world.ledger.entries()


def test_a_replaced_unit_is_charged_for_two_teachers(tmp_path: Path, master: DatasetStore) -> None:
    world = Games(tmp_path, master).budget(relation=Relation.REPLACE_ONE)
    result = world.run(key=None, privacy__relation="replace_one")
    (event,) = result.certificate.stages[0].events
    assert event.sensitivity == 2
    one, two = (
        plan_run(world.config(privacy__relation=relation))
        for relation in ("replace_with_null", "replace_one")
    )
    assert isinstance(one, VotePlan)
    assert isinstance(two, VotePlan)
    assert one.release is not None
    assert two.release is not None
    assert two.release.deviation == pytest.approx(2 * one.release.deviation, rel=0.05)


def test_a_plan_refuses_a_delta_that_would_let_a_patient_be_published(world: Games) -> None:
    with pytest.raises(UnsafeError, match="not below 1/units"):
        plan_run(world.config(privacy__delta=4e-3))


def test_bounds_and_the_number_of_patients_may_be_found_with_noise(world: Games) -> None:
    asked = {"epsilon": 20.0, "search": str(world.bounds)}
    result = world.run(
        key=None, data__units={"epsilon": 1.0}, data__bounds=asked, privacy__epsilon=25.0
    )
    assert [one.name for one in result.certificate.stages] == ["count", "bounds", "votes"]
    assert result.certificate.epsilon <= 25.0


def test_losses_are_the_students_of_a_real_row(
    world: Games, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = world.config()
    _, context = world.finish(config, monkeypatch)
    attack = method_named("pate_gan").open_attack(config, context)
    assert attack is not None
    assert attack.rounds == STEPS
    rows = admissions(30, seed=8)
    rows.observations[7, 0] = np.nan
    losses = attack.losses(rows)
    assert losses.shape == (30, 1)
    assert np.flatnonzero(np.isnan(losses[:, 0])).tolist() == [7]
    method = PateGanMethod(config)
    encoded = torch.from_numpy(world.encoder.encode(rows).rows)
    student = method.played(method.check(context), context).game.pair.student
    real = torch.sigmoid(student.network(encoded[None])[0]).detach().double().numpy()
    np.testing.assert_allclose(np.delete(losses[:, 0], 7), np.delete(-np.log(real), 7), rtol=1e-4)
