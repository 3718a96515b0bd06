"""The work of a run, which a plan makes minutes of: from public facts, without torch."""

from pathlib import Path

import pytest

from distributed_privrl.experiments.demo_configs import TEXTS
from distributed_privrl.experiments.registry import plan_run
from distributed_privrl.experiments.speeds import time_of
from distributed_privrl.methods.dprft.config import DprftConfig
from distributed_privrl.methods.dprft.effort import size_of
from distributed_privrl.stages.effort import Effort
from tests.worlds.overrides import changed, parsed


def config(**changes: object) -> DprftConfig:
    return parsed(changed(TEXTS, changes), DprftConfig)


def effort(**changes: object) -> Effort:
    found = plan_run(config(**changes)).effort
    assert found is not None
    return found


def test_a_demo_takes_minutes() -> None:
    time = time_of(config(), effort(), None)
    assert 0.3 < time.minutes < 10
    assert 4.8 <= time.gigabytes < 5.5


def test_work_grows_with_what_is_asked() -> None:
    one, more = effort(), effort(training__steps=300)
    assert more.learned_rows > one.learned_rows
    assert more.drawn_rows > 4 * one.drawn_rows
    evolving = effort(training__by="aug_pe", model__reward="nearest_votes")
    assert (
        evolving.learned_rows
        == effort(
            training__steps=1, training__by="aug_pe", model__reward="nearest_votes"
        ).learned_rows
    )
    assert evolving.memory < one.memory
    hashed, sentences = effort(), effort(model__encoder="minilm")
    assert sentences.drawn_rows > hashed.drawn_rows
    assert sentences.memory > hashed.memory + 5e8


def test_a_folder_tells_the_size_of_its_model(tmp_path: Path) -> None:
    assert size_of(str(tmp_path)) is None
    assert plan_run(config(model__language=str(tmp_path))).effort is None
    (tmp_path / "config.json").write_text('{"n_layer": 3, "dtype": "bfloat16"}')
    assert size_of(str(tmp_path)) is None
    (tmp_path / "model.safetensors").write_bytes(bytes(2000))
    size = size_of(str(tmp_path))
    assert size is not None
    assert (size.weights, size.layers) == (1000, 3)
    (tmp_path / "config.json").write_text("[]")
    assert size_of(str(tmp_path)) is None


def test_a_downloaded_model_tells_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub", reason="extra text is not installed")
    kept = sized(tmp_path / "kept", stored=4000)

    def found(name: str, file: str) -> str | None:
        return str(kept / file) if name == "some/model" else None

    monkeypatch.setattr(hub, "try_to_load_from_cache", found)
    size = size_of("some/model")
    assert size is not None
    assert size.weights == 1000
    assert size_of("another/model") is None
    monkeypatch.setattr(hub, "try_to_load_from_cache", lambda *_: 1 / 0)
    assert size_of(str(kept)) == size


def test_models_that_are_held_take_memory(tmp_path: Path) -> None:
    folder = str(sized(tmp_path / "large", stored=4_000_000))
    templates = {"template": "pubmed", "instruct": folder}
    base = effort(training__by="grpo", training__options={}, model__language=folder)
    judged = effort(
        training__by="grpo", training__options={}, model__language=folder, training__judge=folder
    )
    assert judged.memory - base.memory == 4e6
    halved = effort(
        training__by="grpo",
        training__options={},
        model__language=folder,
        training__judge=folder,
        training__instruct_dtype="bfloat16",
        training__prompts=templates,
    )
    assert halved.memory - base.memory == 2 * 2e6
    evolving = effort(
        training__by="aug_pe",
        training__options={},
        model__reward="nearest_votes",
        model__language=folder,
    )
    assert base.memory - evolving.memory == 5 * 4e6


def sized(folder: Path, *, stored: int) -> Path:
    """Return a folder that says of its model how large it is."""
    folder.mkdir()
    (folder / "config.json").write_text('{"n_layer": 1, "dtype": "float32"}')
    (folder / "model.safetensors").write_bytes(bytes(stored))
    return folder


@pytest.mark.parametrize("width", [64, 128])
def test_a_small_model_is_about_as_large_as_it_is(width: int) -> None:
    language = pytest.importorskip("distributed_privrl.methods.dprft.language")
    small = pytest.importorskip("tests.text.small")
    section = config(model__language={"width": width, "vocabulary": 300}).model.language
    size = size_of(section)
    sizes = language.pretraining_config(section).model
    from distributed_privrl.core.random import Streams

    made = small.small_language(small.tokenizer(), config=sizes, streams=Streams(0)).model
    assert size is not None
    assert size.weights == pytest.approx(made.num_parameters(), rel=0.25)
