"""`dp_fine_tuning` through the whole program: rounds, coins, crash, resume, certificate, leaks."""

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.data.corpus_datasets import corpus_of
from distributed_privrl.data.shards import shard_refs
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.methods.dprft.fine_tuning import MODEL
from distributed_privrl.methods.dprft.tokens import (
    NetworkOf,
    NextTokenLoss,
    NextTokens,
    StoredTexts,
    TokenCoding,
)
from distributed_privrl.privacy.verification import verify_certificate
from distributed_privrl.rounds.server import ParameterServer
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt
from distributed_privrl.updates.gradient import GradientLocalUpdate
from distributed_privrl.updates.local_update import UnitBatch
from tests.text.small import language
from tests.worlds.notes import CANARY, NOTES, PEOPLE, LearnedNotes

PROMPTS = [Prompt(text="a note: ", words=4), Prompt(text="a long note: ", words=9)]


class Killed(BaseException):
    """Ends a run as a kill does."""


@pytest.fixture
def world(tmp_path: Path) -> LearnedNotes:
    return LearnedNotes(tmp_path).budget()


def texts(world: LearnedNotes, name: str = "run") -> list[str]:
    lines = (world.folder / name / "texts.jsonl").read_text().splitlines()
    return [json.loads(line)["text"] for line in lines]


def coding(piece: int = 8) -> TokenCoding:
    return TokenCoding.of(language(), PROMPTS, piece=piece)


def test_a_killed_run_goes_on_and_is_certified_and_no_file_holds_a_word(
    world: LearnedNotes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = ParameterServer._run_round

    def dies(self: ParameterServer) -> None:
        if self._round == 2:
            raise Killed
        run(self)

    with monkeypatch.context() as patch:
        patch.setattr(ParameterServer, "_run_round", dies)
        with pytest.raises(Killed):
            world.run(key=None)
    result = world.run(key=None, resume=True)
    verify_certificate(result.directory.certificate, ledger=world.ledger)
    (stage,) = result.certificate.stages
    (event,) = stage.events
    assert (event.kind, event.count) == ("poisson_gaussian", 5)  # one was lost
    assert (stage.unit, stage.units, stage.clip_norm) == ("author", PEOPLE, 0.1)
    assert event.sampling_probability == 6 / PEOPLE
    assert len(texts(world)) == 5
    (kept,) = (one for one in world.folder.rglob(MODEL) if one.is_dir() and one != world.language)
    before, after = (list(Language.load(one).model.parameters()) for one in (world.language, kept))
    assert not any(torch.equal(one, other) for one, other in zip(before, after, strict=True))
    report = json.loads((result.directory.path / "report.json").read_text())
    assert "What is in the texts" in {one["title"] for one in report["sections"]}
    world.check_leaks(caplog.text)


def test_the_model_is_the_same_for_any_number_of_workers(world: LearnedNotes) -> None:
    found = []
    for workers in (1, 2, 4):
        world.run(f"of{workers}", runtime__workers=workers, training__rounds=2)
        (kept,) = (world.folder / f"of{workers}").rglob(f"{MODEL}/*.safetensors")
        found.append(kept.read_bytes())
    assert found[0] == found[1] == found[2]


def test_a_row_is_a_public_prompt_with_a_piece_of_the_text_behind_it() -> None:
    one = coding(piece=4)
    tokens = language().encode(["bed drug"])[0]
    rows = one.rows(tokens, 2)
    assert len(rows) == -(-(len(tokens) + 1) // 4)
    learned = [int(number) - 1 for row in rows for number in row if number > 0]
    assert learned == [*tokens, language().end]
    given = [tuple(int(-number) - 1 for number in row if number < 0) for row in rows]
    assert set(given) == {one.prompts[0]}, "the prompt that asks for fewer words"
    with pytest.raises(ConfigError, match="no room for a prompt"):
        TokenCoding.of(language(), PROMPTS, piece=48)


@pytest.mark.parametrize("text", ["", "\0", "\ud800 x", "a" * 100_000, "\u202e\U0001f600" * 50])
def test_no_text_is_refused(text: str, world: LearnedNotes) -> None:
    path = world.folder / "odd.jsonl"
    path.write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": "a note"}) + "\n")
    corpus = corpus_of(world.store, NOTES)
    (ref,) = shard_refs(world.store, NOTES, count=1, unit="author")
    odd = type(corpus)(path=str(path))
    shard = StoredTexts(ref=ref, corpus=odd, coding=coding())()
    alone = shard.rows[shard.offsets[1] :]
    path.write_text(json.dumps({"text": "b"}) + "\n" + json.dumps({"text": "a note"}) + "\n")
    other = StoredTexts(ref=ref, corpus=odd, coding=coding())()
    assert np.array_equal(alone, other.rows[other.offsets[1] :]), "a unit's rows are its own"


@pytest.mark.parametrize("failing", [False, True])
def test_no_text_has_a_token_that_the_model_does_not_know(failing: bool) -> None:
    grown = copy.deepcopy(language())
    grown.tokenizer.add_tokens([CANARY])  # as a padding token is, that embeddings do not have
    known = grown.model.config.vocab_size
    one = TokenCoding.of(grown, [Prompt(text=f"{CANARY} note: ", words=4)], piece=8)
    tokenizer = Tokenizer.from_str(one.tokenizer)
    assert max(tokenizer.encode(f"a {CANARY}").ids) == known, "the tokenizer has one more"
    if failing:
        tokenizer = Tokenizer(WordLevel({"a": 0}))  # without a token for unknown words
    rows = one.rows(one.tokens(tokenizer, f"a {CANARY} x"), 3)
    losses = NextTokenLoss()(
        NetworkOf.of(grown, "cpu")(), torch.from_numpy(rows), torch.zeros(len(rows), 0)
    )
    assert losses.isfinite().all()
    grown.tokenizer.eos_token = CANARY
    with pytest.raises(ConfigError, match="ends texts with token"):
        TokenCoding.of(grown, PROMPTS, piece=8)


def test_a_document_that_is_gone_changes_no_other_s_rows(world: LearnedNotes) -> None:
    """Under add_or_remove the lines behind it, which are units by their number, move up."""
    path, texts = (
        world.folder / "moved.jsonl",
        [f"a note of bed {i} and drug {i}" for i in range(9)],
    )
    (ref,) = shard_refs(world.store, NOTES, count=1, unit="author")
    alike = [Prompt(text=text, words=9) for text in ("a note: ", "a long note: ")]
    either, found = TokenCoding.of(language(), alike, piece=8), []
    for kept in (texts, texts[1:]):
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in kept))
        corpus = type(corpus_of(world.store, NOTES))(path=str(path))
        found.append(StoredTexts(ref=ref, corpus=corpus, coding=either)())
    one, other = found
    assert np.array_equal(one.rows[one.offsets[1] :], other.rows)
    given = [tuple(row[row < 0]) for row in one.rows]
    assert len(set(given)) == 2, "both prompts are taken"


def test_a_unit_s_vector_is_the_clipped_gradient_of_all_tied_weights() -> None:
    known = language()
    build, loss, clip_norm = NetworkOf.of(known, "cpu"), NextTokenLoss(), 0.05
    rows = [coding().rows(known.encode([text])[0], 3)[0] for text in ("a bed", "drugs of x")]
    update = GradientLocalUpdate(
        module=build(), row_loss=loss, clip_norm=clip_norm, per_unit_gradients="formed"
    )
    network = NextTokens(known.model)
    own = dict(network.named_parameters())
    assert list(own) == list(update._flat.slices)
    flat = torch.cat([one.detach().reshape(-1) for one in own.values()]).numpy()
    batch = UnitBatch(
        rows=np.stack(rows)[:, None],
        valid=np.ones((2, 1), bool),
        draws=np.zeros((2, 1, 0)),
    )
    expected = np.zeros(len(flat))
    for row in rows:
        value = loss(network, torch.from_numpy(row[None]), torch.zeros(1, 0)).sum()
        gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(value, own.values())])
        expected += (gradient * clip_norm / gradient.norm()).double().numpy()
    found = update.clipped_sum(flat, batch)
    assert np.linalg.norm(found - expected) < 1e-3 * np.linalg.norm(expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data__unit": "transition"}, "a corpus has documents"),
        ({"data__max_length": 7}, "no meaning for dp_fine_tuning"),
        ({"privacy__relation": "replace_one"}, "replace_with_null or add_or_remove"),
        ({"training__prompts__template": "nothing"}, "choose one of notes"),
        ({"training__most_tokens": 48}, "the model takes 48 tokens, a prompt's too"),
        ({"training__expected_batch_size": 60}, "above data.units"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_charged(
    world: LearnedNotes, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises((ConfigError, UnsafeError), match=message):
        world.run(**changes)
    assert not world.ledger.entries()


def test_a_plan_says_noise_and_work(world: LearnedNotes) -> None:
    plan = plan_run(world.config())
    assert plan.facts()["noise_multiplier"] > 0
    assert plan.facts()["round_noise"] > 0
    assert plan.effort is not None
    assert plan.effort.private_rows > 0
