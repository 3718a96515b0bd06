"""A corpus is a dataset: its account is that of its documents and of whose they are."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data import corpus_datasets
from distributed_privrl.data.corpus import documents
from distributed_privrl.data.corpus_datasets import (
    CorpusSchema,
    corpus_of,
    import_corpus,
)
from distributed_privrl.data.fingerprint import inspect, share_rows
from distributed_privrl.data.sketch import compare
from distributed_privrl.data.store import DatasetStore

KEY = bytes(32)


def _schema(unit: str = "document", **more: object) -> CorpusSchema:
    return validate(CorpusSchema, {"text": {"unit": unit}, **more}, source="schema")


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    return DatasetStore(tmp_path / "store")


def _imported(
    store: DatasetStore, name: str, texts: list[str], users: list[str], unit: str = "user"
) -> str:
    path = store.root.parent / f"{name}.jsonl"
    rows = [{"text": text, "user": user} for text, user in zip(texts, users, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    import_corpus(path, _schema(unit), store, f"texts/{name}-v0")
    return f"texts/{name}-v0"


TEXTS = [f"document {i % 30} of the corpus" for i in range(40)]
USERS = [f"person {i % 8}" for i in range(40)]


@pytest.mark.parametrize(("unit", "units"), [("document", 40), ("user", 8)])
def test_documents_come_back_with_their_units(store: DatasetStore, unit: str, units: int) -> None:
    name = _imported(store, "a", TEXTS, USERS, unit)
    info = store.info(name)
    assert info.unit_column == unit
    ref = corpus_of(store, name)
    path = Path(ref.path)
    shares = [list(documents(replace(ref, index=index, count=2))) for index in range(2)]
    assert sorted(one.text for share in shares for one in share) == sorted(TEXTS)
    assert len({one.unit_id for share in shares for one in share}) == units
    rows = store.read_transitions(name, unit=unit)
    assert len(rows) == 40
    assert len(set(rows.unit_ids.tolist())) == units
    assert (path.stat().st_mode | path.parent.stat().st_mode) & 0o077 == 0


def test_the_account_is_that_of_texts_and_people(store: DatasetStore) -> None:
    one = inspect(store, _imported(store, "a", TEXTS, USERS), unit="user", key=KEY)
    order = list(reversed(range(40)))
    moved = _imported(store, "b", [TEXTS[i] for i in order], [USERS[i] for i in order])
    assert inspect(store, moved, unit="user", key=KEY).identity == one.identity
    others = _imported(store, "c", TEXTS, [*USERS[1:], "new"])
    assert inspect(store, others, unit="user", key=KEY).identity != one.identity
    changed = _imported(store, "d", [*TEXTS[:-1], "another"], USERS)
    assert inspect(store, changed, unit="user", key=KEY).fingerprint != one.fingerprint


def test_shared_documents_are_found_and_others_are_not(store: DatasetStore) -> None:
    mine = [f"mine {i}" for i in range(300)]
    theirs = [f"theirs {i}" for i in range(300)]
    names = {
        name: _imported(store, name, texts, ["x"] * 300, "document")
        for name, texts in {"a": mine, "b": theirs, "c": theirs[:150] + mine[:150]}.items()
    }
    found = {name: inspect(store, names[name], unit="document", key=KEY).sketch for name in names}
    assert all(found.values())
    assert not compare(found["a"], found["b"]).suspicious  # type: ignore[arg-type]
    assert not compare(found["a"], found["b"]).units_suspicious  # type: ignore[arg-type]
    assert compare(found["a"], found["c"]).suspicious  # type: ignore[arg-type]
    assert share_rows(store, names["a"], names["c"])
    assert not share_rows(store, names["a"], names["b"])


def _as_lines(path: Path, texts: list[str]) -> Path:
    path.with_suffix(".jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path.with_suffix(".jsonl")


def _as_files(path: Path, texts: list[str]) -> Path:
    path.mkdir()
    for number, text in enumerate(texts):
        (path / f"{number:03}.txt").write_text(text + "\n")
    return path


@pytest.mark.parametrize(
    ("write", "change", "cap"),
    [
        (_as_lines, str, 21),
        (_as_files, str, 20),
        (_as_lines, lambda text: f"{text} ", 20),
        (_as_lines, lambda text: text.upper().replace(" ", "\t "), 20),
    ],
    ids=["cap", "files", "space", "case"],
)
def test_a_corpus_that_is_cut_or_written_otherwise_is_the_same(
    store: DatasetStore,
    tmp_path: Path,
    write: Callable[[Path, list[str]], Path],
    change: Callable[[str], str],
    cap: int,
) -> None:
    texts = [f"Document {i} of a long corpus" for i in range(60)]
    first, again = _as_lines(tmp_path / "a", texts), write(tmp_path / "b", list(map(change, texts)))
    for path, most in ((first, 20), (again, cap)):
        schema = validate(CorpusSchema, {"text": {"max_characters": most}}, source="schema")
        import_corpus(path, schema, store, f"texts/{path.stem}-v0")
    one, other = (inspect(store, f"texts/{n}-v0", unit="document", key=KEY) for n in "ab")
    assert one.identity == other.identity
    assert one.fingerprint == other.fingerprint
    assert share_rows(store, "texts/a-v0", "texts/b-v0")
    ref = corpus_of(store, "texts/b-v0")
    assert {len(found.text) for found in documents(ref)} == {cap}


def test_a_corpus_that_grows_while_it_is_read_is_refused(
    store: DatasetStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, write = _as_lines(tmp_path / "a", TEXTS), corpus_datasets.write_documents

    def later(*arguments: Any) -> None:
        with path.open("a") as opened:
            opened.write('{"text": "a log goes on"}\n')
        write(*arguments)

    monkeypatch.setattr(corpus_datasets, "write_documents", later)
    with pytest.raises(StorageError, match="changed while it was read"):
        import_corpus(path, _schema(), store, "texts/a-v0")
    assert store.ids() == []


def test_a_file_that_is_damaged_or_gone_is_refused(store: DatasetStore) -> None:
    name = _imported(store, "a", TEXTS, USERS)
    path = Path(corpus_of(store, name).path)
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    with pytest.raises(StorageError, match="not the file that was imported"):
        corpus_of(store, name)
    path.unlink()
    with pytest.raises(StorageError, match="cannot read"):
        corpus_of(store, name)


SAID = [{"role": "user", "content": "Hi\nthere"}, {"role": "assistant", "content": "Hello"}]
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "pubmed": ({"text": "An abstract."}, {}, "An abstract."),
    "bbc": (
        {"document": "An article.", "summary": "A summary.", "id": "1"},
        {"column": "document"},
        "An article.",
    ),
    "wildchat": (
        {"conversation": SAID, "hashed_ip": "f0", "turn": 1},
        {
            "unit": "hashed_ip",
            "column": "conversation",
            "turns": {"speaker": "role", "said": "content"},
        },
        "User: Hi there\nAssistant: Hello",
    ),
    "qmsum": (
        {"meeting_transcripts": [{"speaker": "PhD A", "content": "Okay ."}], "topic_list": []},
        {"column": "meeting_transcripts", "turns": {"speaker": "speaker", "said": "content"}},
        "PhD A: Okay .",
    ),
}
"""A record of each corpus, the schema's section ``text``, and the document."""


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_files_in_the_layouts_of_the_paper_s_corpora(
    store: DatasetStore, name: str, suffix: str
) -> None:
    record, section, text = LAYOUTS[name]
    path = store.root.parent / f"{name}.{suffix}"
    if suffix == "jsonl":
        path.write_text((json.dumps(record) + "\n") * 2)
    else:
        pq.write_table(pa.Table.from_pylist([record] * 2), path)
    schema = validate(CorpusSchema, {"text": section}, source="schema")
    import_corpus(path, schema, store, f"texts/{name}-v0")
    found = list(documents(corpus_of(store, f"texts/{name}-v0")))
    assert [one.text for one in found] == [text] * 2
    assert len({one.unit_id for one in found}) == (1 if "unit" in section else 2)


def test_what_cannot_be_is_refused_and_leaves_nothing(store: DatasetStore) -> None:
    path = store.root.parent / "a.jsonl"
    path.write_text("no json\n")
    with pytest.raises(ConfigError, match=r"that can be read: no JSON object in the line$"):
        import_corpus(path, _schema(), store, "texts/a-v0")
    with pytest.raises(ConfigError, match=r"text\.unit must be"):
        import_corpus(path, _schema("transition"), store, "texts/a-v0")
    own = validate(CorpusSchema, {"text": {"unit": "body", "column": "body"}}, source="schema")
    with pytest.raises(ConfigError, match=r"text\.unit must be"):
        import_corpus(path, own, store, "texts/a-v0")
    assert store.ids() == []
    path.write_text('{"text": "a"}\n')
    import_corpus(path, _schema(public=True), store, "texts/a-v0")
    assert store.info("texts/a-v0").declared_public
