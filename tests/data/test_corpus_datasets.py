"""A corpus is a dataset: its account is that of its documents and of whose they are."""

import json
from pathlib import Path

import pytest

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data.corpus import CorpusRef, documents
from distributed_privrl.data.corpus_datasets import (
    UNIT_IDS,
    CorpusSchema,
    corpus_file,
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
    path = corpus_file(store, name)
    shares = [
        list(documents(CorpusRef(path=str(path), unit=UNIT_IDS, index=index, count=2)))
        for index in range(2)
    ]
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


def test_documents_that_were_changed_or_lost_are_refused(store: DatasetStore) -> None:
    name = _imported(store, "a", TEXTS, USERS)
    path = corpus_file(store, name)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"x")
    with pytest.raises(StorageError, match="not the file that was imported"):
        corpus_file(store, name)
    path.unlink()
    with pytest.raises(StorageError, match="cannot read"):
        corpus_file(store, name)


def test_what_cannot_be_is_refused_and_leaves_nothing(store: DatasetStore) -> None:
    path = store.root.parent / "a.jsonl"
    path.write_text("no json\n")
    with pytest.raises(ConfigError, match="that can be read"):
        import_corpus(path, _schema(), store, "texts/a-v0")
    with pytest.raises(ConfigError, match=r"text\.unit must be"):
        import_corpus(path, _schema("transition"), store, "texts/a-v0")
    assert store.ids() == []
    path.write_text('{"text": "a"}\n')
    import_corpus(path, _schema(public=True), store, "texts/a-v0")
    assert store.info("texts/a-v0").declared_public
