"""A run's own small model of public prose: trained before a charge, kept, and taken again."""

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.dprft.config import ProseConfig
from distributed_privrl.methods.dprft.language import language_of
from distributed_privrl.methods.dprft.writing import gate_of, prompt_template, prompts_of
from distributed_privrl.text import pretraining
from distributed_privrl.text.language import Language
from distributed_privrl.text.prompts import Prompt
from tests.worlds.notes import CANARY, Notes

SMALL = {
    **{"packages": ["opacus"], "steps": 4, "batch": 2, "vocabulary": 300, "context": 96},
    **{"width": 16, "layers": 1, "heads": 2, "excerpt_words": 30},
}


def test_a_run_trains_its_model_on_public_prose_once_before_it_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, folder = Notes(tmp_path).budget(), tmp_path / "languages"
    config = world.config(model__language={**SMALL, "folder": str(folder)})
    told: list[str] = []

    def tell(stage: str, done: int, total: int, note: str = "") -> None:
        told.append(stage)
        if stage == "language":
            assert done == total == 4
            assert not world.ledger.entries()

    world.start(config, progress=tell, insecure_key=7)
    assert told.count("language") == 1
    assert "tuning" in told
    files = [one for one in folder.rglob("*") if one.is_file()]
    assert files
    assert all(CANARY.encode() not in one.read_bytes() for one in files)
    monkeypatch.setattr(pretraining, "_train", None)  # a second training would call it
    assert language_of(config, prompt_template(config)).model.config.n_embd == 16


def test_prompts_are_of_the_model_s_packages_where_none_are_named(tmp_path: Path) -> None:
    config = Notes(tmp_path).config(
        model__language=SMALL, training__prompts={"template": "prose", "count": 8}
    )
    topics = {prompt.topic.split()[0] for prompt in prompts_of(config)}
    assert "opacus" in topics
    assert topics <= {"opacus", "benchmarks"}  # the packages of its wheel


def test_what_cannot_be_trained_is_refused(tmp_path: Path) -> None:
    world = Notes(tmp_path)
    for changes, message in (
        ({"packages": []}, "at least 1"),
        ({"heads": 3}, "heads must divide width"),
    ):
        with pytest.raises(ConfigError, match=message):
            world.config(model__language={**SMALL, **changes})
    config = world.config(model__language={**SMALL, "packages": ["no-such-package"]})
    assert isinstance(config.model.language, ProseConfig)
    with pytest.raises(ConfigError, match="is not installed"):
        language_of(config, prompt_template(config))


def test_judges_and_authors_of_prompts_may_be_in_half_the_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, loaded = Notes(tmp_path), list[tuple[Any, str]]()
    right = Language.load

    def load(folder: Any, *, dtype: str = "float32") -> Language:
        found = right(folder, dtype=dtype)
        loaded.append((folder, str(found.model.dtype)))
        return found

    monkeypatch.setattr(Language, "load", load)
    config = world.config(training__judge=str(world.language), training__instruct_dtype="bfloat16")
    gate = gate_of(config)
    assert gate.judge is not None
    assert gate.judge(Prompt(text="A note"), "a text") >= 0
    language_of(config, prompt_template(config))
    assert [one for _, one in loaded] == ["torch.bfloat16", "torch.float32"]
