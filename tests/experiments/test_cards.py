"""The card of a released dataset, and the folder that other readers load with it."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import minari
import pandas as pd
import pytest
import yaml

from distributed_privrl.core.errors import ConfigError, UnsafeError, VerificationError
from distributed_privrl.data.exporting import export
from distributed_privrl.data.importing import from_table
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.schema import ImportSchema
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation import plots, two_sample
from distributed_privrl.evaluation.report import WHOLE_TRAJECTORIES
from distributed_privrl.experiments.cards import FILE_NAME, FOR_AGENTS, SYNTHETIC_KEY, card
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.experiments.run import RunResult
from distributed_privrl.experiments.sharing import export_folder
from distributed_privrl.privacy.verification import verify_certificate
from tests.worlds.certified import certify
from tests.worlds.crowd import Crowd, crowd_store
from tests.worlds.mazes import SENSITIVE, Mazes, maze_store

RELEASED = "test/private-v0"
SIGNED = {
    "output__author": ["Ada | Lovelace", "Bo <b>"],
    "output__author_email": ["ada@example.org"],
    "output__code_permalink": "https://example.org/code",
}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Pictures, and trees that tell rows apart, are no part of a card."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "render", lambda *_: b"<svg/>")
        patch.setattr(two_sample, "area", lambda *_, **__: 0.75)
        yield


@pytest.fixture(scope="module")
def finished(quick: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Mazes, RunResult]:
    folder = tmp_path_factory.mktemp("cards")
    world = Mazes(folder, maze_store(folder / "made"))
    world.budget()
    return world, world.run(key=None, **SIGNED)


def header_of(path: Path) -> dict[str, Any]:
    _, header, _ = path.read_text().split("---\n", 2)
    return dict(yaml.safe_load(header))


def test_the_card_says_what_the_certificate_says(finished: tuple[Mazes, RunResult]) -> None:
    world, result = finished
    path = world.store.folder(RELEASED) / FILE_NAME
    text, certificate = path.read_text(), result.certificate
    assert header_of(path)["task_categories"] == ["reinforcement-learning"]
    assert {"differential-privacy", "synthetic"} <= set(header_of(path)["tags"])
    assert f"Epsilon is {certificate.epsilon:.4g} and delta {certificate.delta:.3g}" in text
    assert "150 transitions, all of them synthetic" in text
    assert certificate.digest in text
    assert "The privacy unit is one transition" in text
    assert "## What it is not good for" in text
    assert "`observation_0`" in text
    assert "| units | 3000 | declared public |" in text, "of the public report"
    verify_certificate(result.directory.certificate, outputs_root=world.store.root)


def test_the_card_holds_the_public_report_and_nothing_of_the_private_one(
    finished: tuple[Mazes, RunResult],
) -> None:
    world, result = finished
    text = (world.store.folder(RELEASED) / FILE_NAME).read_text()
    public = json.loads((result.directory.path / "report.json").read_text())
    private = json.loads((result.directory.private / "report.json").read_text())
    titles = {one["title"] for one in public["sections"] if one["metrics"]}
    assert titles
    assert all(f"## {title}" in text for title in titles)
    hidden = {one["title"] for one in private["sections"]} - titles
    assert hidden
    assert not any(title in text for title in hidden)


def test_who_made_it_is_in_minari_s_keys_and_breaks_no_markdown(
    finished: tuple[Mazes, RunResult], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, _ = finished
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(world.store.root))
    metadata = minari.load_dataset(RELEASED).storage.metadata
    assert metadata["author"] == {"Ada | Lovelace", "Bo <b>"}
    assert metadata["author_email"] == {"ada@example.org"}
    assert metadata["code_permalink"] == "https://example.org/code"
    assert metadata["algorithm_name"].startswith("privorl_n (distributed_privrl ")
    text = (world.store.folder(RELEASED) / FILE_NAME).read_text()
    assert "* Author: Ada \\| Lovelace, Bo &lt;b>" in text


def test_a_report_that_is_written_anew_leaves_the_same_card(
    finished: tuple[Mazes, RunResult],
) -> None:
    world, result = finished
    path = world.store.folder(RELEASED) / FILE_NAME
    before = path.read_text()
    path.unlink()
    rebuild_report(result.directory.path, store=world.store, ledger_url=world.url)
    assert path.read_text() == before


def test_the_folder_holds_the_rows_the_card_and_the_certificate(
    finished: tuple[Mazes, RunResult], tmp_path: Path
) -> None:
    world, result = finished
    out = tmp_path / "shared"
    export_folder(world.store, RELEASED, out, ledger_url=world.url)
    ((split,),) = [one["data_files"] for one in header_of(out / FILE_NAME)["configs"]]
    assert split["split"] == "train"
    export(world.store, RELEASED, "parquet", tmp_path / "rows.parquet")
    pd.testing.assert_frame_equal(
        pd.read_parquet(out / split["path"]), pd.read_parquet(tmp_path / "rows.parquet")
    )
    assert (out / "certificate.json").read_text() == result.directory.certificate.read_text()
    assert "## How it was made" in (out / FILE_NAME).read_text()
    assert "in a folder for Hugging Face it is `certificate.json`" in (out / FILE_NAME).read_text()
    with pytest.raises(ConfigError, match="exists already"):
        export_folder(world.store, RELEASED, out, ledger_url=world.url)


def test_the_card_of_the_folder_goes_on_as_that_of_the_dataset(
    finished: tuple[Mazes, RunResult], tmp_path: Path
) -> None:
    """It had none of the sections of the public report, and the other one has."""
    world, _ = finished
    own = world.store.folder(RELEASED) / FILE_NAME
    before = own.read_text()
    titles = re.findall(r"^## .*", before, re.MULTILINE)
    assert "## What was public before" in titles
    try:
        export_folder(world.store, RELEASED, tmp_path / "shared", ledger_url=world.url)
        shared = tmp_path / "shared" / FILE_NAME
        assert re.findall(r"^## .*", shared.read_text(), re.MULTILINE) == titles
        assert shared.read_text().split("---\n", 2)[2] == before.split("---\n", 2)[2]
        assert header_of(shared) == {**header_of(own), "configs": header_of(shared)["configs"]}

        digest = str(world.store.info(RELEASED).certificate["digest"])
        own.write_text(before.replace(digest, "0" * len(digest)))
        export_folder(world.store, RELEASED, tmp_path / "other", ledger_url=world.url)
        other = (tmp_path / "other" / FILE_NAME).read_text()
        assert digest in other
        assert "## What was public before" not in other, "that card is of another release"
        own.unlink()
        export_folder(world.store, RELEASED, tmp_path / "none", ledger_url=world.url)
        assert (tmp_path / "none" / FILE_NAME).read_text() == other
    finally:
        own.write_text(before)


def test_hugging_face_s_library_loads_the_folder(
    finished: tuple[Mazes, RunResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "datasets is not installed: it comes with the extra text"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    datasets = pytest.importorskip("datasets", reason=reason)
    world, _ = finished
    out = tmp_path / "shared"
    export_folder(world.store, RELEASED, out, ledger_url=world.url)
    loaded = datasets.load_dataset(str(out), split="train", cache_dir=str(tmp_path / "cache"))
    expected = pd.read_parquet(out / "data" / "train-00000-of-00001.parquet")
    pd.testing.assert_frame_equal(loaded.to_pandas(), expected)


def test_what_may_not_leave_is_in_no_folder(
    finished: tuple[Mazes, RunResult], tmp_path: Path
) -> None:
    world, _ = finished
    assert not (world.store.folder(SENSITIVE) / FILE_NAME).exists()
    with pytest.raises(UnsafeError, match="Hugging Face's datasets may not read it"):
        export_folder(world.store, SENSITIVE, tmp_path / "leak", ledger_url=world.url)
    rows = next(one for one in world.store.files(RELEASED) if one.suffix == ".parquet")
    content = rows.read_bytes()
    rows.write_bytes(content + b" ")
    with pytest.raises(VerificationError, match="is not what the certificate names"):
        export_folder(world.store, RELEASED, tmp_path / "leak", ledger_url=world.url)
    rows.write_bytes(content)
    assert list(tmp_path.iterdir()) == []


def test_a_run_without_a_valid_certificate_has_no_card(tmp_path: Path) -> None:
    world = Mazes(tmp_path, maze_store(tmp_path / "made"))
    world.budget()
    world.start(world.config(), insecure_key=7, reports=False)  # an invalid certificate
    assert not (world.store.folder(RELEASED) / FILE_NAME).exists()


def test_stable_prefixes_of_experts_are_not_called_synthetic(tmp_path: Path) -> None:
    world = Crowd(tmp_path, crowd_store(tmp_path / "made"))
    world.run(
        key=None,
        evaluation={"episodes": 1, "max_steps": 40},
        output__dataset="crowd/stable-v0",
    )
    path = world.store.folder("crowd/stable-v0") / FILE_NAME
    text = path.read_text()
    assert "all of them real ones that differential privacy lets out" in text
    assert "synthetic" not in text
    assert "expert" in text


def test_public_rows_are_called_so(tmp_path: Path) -> None:
    store = maze_store(tmp_path / "made", declared=True)
    text = card(store.info("test/medium-v0"), files={"train": "data/train.parquet"})
    assert "declared public" in text
    assert "Epsilon is" not in text
    assert "synthetic" not in text


def test_a_card_of_rows_that_nothing_follows_names_no_next_columns(tmp_path: Path) -> None:
    info = maze_store(tmp_path / "made", declared=True).info("test/medium-v0")
    files = {"train": "data/train.parquet"}
    assert "`next_observation_0`" in card(info, files=files)
    alone = card(replace(info, has_successors=False), files=files)
    assert "next_observation" not in alone
    assert "`terminal`" not in alone
    assert "`observation_0`" in alone
    assert "`reward`" in alone


PANEL = {
    "columns": {
        "observation": ["age", "income"],
        "action": "job",
        "reward": "health",
        "trajectory": "person",
        "order": "year",
        "terminated": "last",
    },
    "kinds": {
        "age": {"type": "number", "whole": True, "lasting": True},
        "income": {
            "type": "number",
            "whole": True,
            "missing": "indicator",
            "at_most": "age",
        },
        "job": {"type": "category", "values": ["no | none", "yes"]},
        "health": {"type": "flag", "values": ["poor", "good"]},
    },
}
FACTS = {
    "title": "What was public before",
    "metrics": [
        {"name": "column age", "value": "number from 18 to 99", "explanation": "observation"},
        {"name": "units", "value": 2, "explanation": "declared public"},
    ],
}
OF_AGENTS = re.compile(
    r"\b(observations?|actions?|rewards?|transitions?|agents?|polic(y|ies)|minari|reinforcement)\b",
    re.IGNORECASE,
)


def panel(folder: Path, **columns: Any) -> DatasetInfo:
    """Return a release of a table of two people, whose schema names the columns."""
    store = DatasetStore(folder)
    frame = pd.DataFrame(
        {
            "person": [7, 7, 9],
            "year": [1980, 1981, 1980],
            "age": [30, 30, 50],
            "income": [1.5, None, 2.5],
            "job": ["yes", "no | none", "yes"],
            "health": ["good", "poor", "good"],
        }
    )
    schema = {**PANEL, "columns": {**PANEL["columns"], **columns}}
    from_table(frame, ImportSchema.model_validate(schema), dataset=RELEASED, store=store)
    store.update_metadata(RELEASED, {SYNTHETIC_KEY: True})
    certify(store, RELEASED, method="marginals_j")
    return store.info(RELEASED)


def test_the_card_of_a_table_speaks_of_rows_and_columns_before_agents(tmp_path: Path) -> None:
    lengths = {
        "title": WHOLE_TRAJECTORIES,
        "metrics": [{"name": "mean return, synthetic", "value": 1.5}],
    }
    text = card(panel(tmp_path), report={"sections": [lengths, FACTS]})
    people, agents = text.split(f"## {FOR_AGENTS}\n")
    assert OF_AGENTS.search(people) is None, OF_AGENTS.search(people)
    assert "3 rows of 2 values of `person`, all of them synthetic" in people
    assert "* `age`: a whole number, which a person keeps" in people
    assert "* `income`: a whole number, never above `age`, or missing" in people
    assert '* `job`: one of "no \\| none", "yes"' in people
    assert '* `health`: one of "poor", "good"' in people
    assert "* `step`: place of a row" in people
    assert "in the row that follows, and after a last row what means nothing;" in people
    assert "year" not in people, "the column that sorted the rows does not come back"
    assert "| column age | number from 18 to 99 |  |" in people
    assert "| units | 2 | declared public |" in people
    assert "whose observation is `age`, `income`, whose action is `job`" in agents
    assert "whose reward is `health`" in agents
    assert "* not good for decisions about people by a policy" in agents
    assert "### Whole trajectories" in agents
    assert "mean return" in agents


def test_columns_that_a_card_names_are_those_of_the_export(tmp_path: Path) -> None:
    info = panel(tmp_path)
    export(DatasetStore(tmp_path), RELEASED, "csv", tmp_path / "out.csv")
    found = set(pd.read_csv(tmp_path / "out.csv").columns)
    part = card(info).split("## Columns")[1].split(f"## {FOR_AGENTS}")[0]
    told = set(re.findall(r"`(\w+)`", part)) - {"next_"}
    own = {name for name in found if not name.startswith("next_")}
    assert told == own - {"unit"}, "whose a row is, which an import has and no release"
    assert {f"next_{name}" for name in ("age", "income")} <= found


def test_rows_without_a_table_keep_the_words_of_agents(finished: tuple[Mazes, RunResult]) -> None:
    world, _ = finished
    text = (world.store.folder(RELEASED) / FILE_NAME).read_text()
    assert FOR_AGENTS not in text
    assert OF_AGENTS.search(text.split("## Privacy")[0])
