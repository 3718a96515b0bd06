"""The membership attack on fine-tuned models: it sees one that memorises, and no private one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.config import validate
from distributed_privrl.data.corpus import TEXT
from distributed_privrl.data.corpus_datasets import CorpusSchema, import_corpus
from distributed_privrl.data.splitting import split
from distributed_privrl.experiments.attacks import Attacked
from distributed_privrl.experiments.audit import audit_run
from distributed_privrl.methods.dprft.attack import FineTuningAttack
from distributed_privrl.methods.dprft.tokens import NextTokens, TokenCoding
from distributed_privrl.text.prompts import Prompt
from tests.text.small import language
from tests.worlds.notes import CANARY, LearnedNotes

WHOLE, MEMBERS, OTHERS = (f"clinic/letters{side}-v0" for side in ("", "-training", "-held-out"))


class Letters(LearnedNotes):
    """Letters of nonsense by some people, half of whom a run does not see."""

    dataset = MEMBERS

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        source, path = np.random.default_rng(3), folder / "letters.jsonl"
        words = source.integers(97, 123, size=(48, 3, 4), dtype=np.uint8)
        texts = [f"{CANARY} " + " ".join(row.tobytes().decode() for row in one) for one in words]
        rows = [{TEXT: text, "author": f"l{i}"} for i, text in enumerate(texts)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        schema = validate(CorpusSchema, {TEXT: {"unit": "author"}}, source="test")
        import_corpus(path, schema, self.store, WHOLE)
        sides = split(self.store, WHOLE, held_out_share=0.5, seed=2)
        self.units = len(self.store.read_transitions(MEMBERS, unit="author"))
        assert [one.id for one in sides] == [MEMBERS, OTHERS]

    def config(self, **changes: Any) -> Any:
        values = {
            "data__sensitive": MEMBERS,
            "data__units": self.units,
            "training__rounds": 10,
            "training__spare": 0,
            "training__expected_batch_size": self.units,
            "training__clip_norm": 1.0,
            "training__most_tokens": 24,
            "training__optimiser__learning_rate": 3e-2,
            "output__size": 1,
        }
        return super().config(**(values | changes))

    def attacked(self, name: str, patch: pytest.MonkeyPatch, **changes: Any) -> Attacked:
        patch.setattr("distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None)
        self.run(name, **changes)
        found = audit_run(
            self.folder / name,
            out=self.folder / f"{name}-audit",
            held_out=OTHERS,
            store=self.store,
            ledger_url=self.url,
        ).membership
        assert isinstance(found, Attacked), found
        return found


def test_it_sees_a_model_that_memorises_and_no_private_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = Letters(tmp_path).budget()
    leaking = world.attacked("open", monkeypatch, privacy__epsilon=None)
    private = world.attacked("private", monkeypatch, privacy__epsilon=1.0)
    assert leaking.figures.fires()
    assert leaking.figures.area.value > 0.7
    assert not private.figures.fires()
    assert leaking.rounds == private.rounds == 10
    assert leaking.figures.members + leaking.figures.non_members == 48
    for path in tmp_path.glob("*-audit/**/*"):
        assert not path.is_file() or CANARY.encode() not in path.read_bytes(), path


def test_a_text_s_loss_is_the_mean_over_its_pieces_less_that_of_the_model_before() -> None:
    before, after = NextTokens(language(seed=0).model), NextTokens(language(seed=1).model)
    coding = TokenCoding.of(language(), [Prompt(text="a note: ", words=4)], piece=4)
    attack = FineTuningAttack(coding=coding, before=before, after=after, rounds=3)
    texts = ["bed and drug and bed again", "x", ""]
    found = attack.text_losses(texts)
    assert found.shape == (3, 1)
    for text, (loss,) in zip(texts, found, strict=True):
        rows = coding.rows(language().encode([text])[0] if text else [], len(text.split()))
        expected = []
        for row in rows:
            given = [int(abs(number)) - 1 for number in row if number]
            learned = [place for place, number in enumerate(row) if number > 0]
            each = []
            for network in (after, before):
                with torch.no_grad():
                    logits = network(torch.tensor([given]))[0].log_softmax(-1)
                each.append(-np.mean([float(logits[i - 1, given[i]]) for i in learned]))
            expected.append(each[0] - each[1])
        assert loss == pytest.approx(np.mean(expected), abs=1e-5)
