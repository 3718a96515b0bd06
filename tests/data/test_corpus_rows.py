"""Documents are those that their rows stand for, and the driver of a run opens none of them."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributed_privrl.core.config import validate
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.corpus import documents, hash_of
from distributed_privrl.data.corpus_datasets import HASH, CorpusSchema, corpus_of, import_corpus
from distributed_privrl.data.corpus_rows import check_documents, texts_of
from distributed_privrl.data.splitting import split
from distributed_privrl.data.store import DatasetStore

NAME, OTHER = "texts/a-v0", "texts/b-v0"
TEXTS = [f"zanzibar document {i % 30} of the corpus" for i in range(40)]
USERS = [f"person {i % 8}" for i in range(40)]


@pytest.fixture
def store(tmp_path: Path) -> DatasetStore:
    return DatasetStore(tmp_path / "store")


def _imported(store: DatasetStore, name: str, texts: list[str]) -> Path:
    path = store.root.parent / "texts.jsonl"
    rows = [{"text": text, "user": user} for text, user in zip(texts, USERS, strict=True)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    schema = {"text": {"unit": "user", "max_characters": 20}}
    import_corpus(path, validate(CorpusSchema, schema, source="test"), store, name)
    return Path(corpus_of(store, name).path)


def _check(store: DatasetStore, name: str, workers: int) -> None:
    check_documents(store, name, workers=workers, executor=LocalExecutor())


@pytest.mark.parametrize("workers", [1, 3])
def test_documents_are_those_that_the_budget_is_for(store: DatasetStore, workers: int) -> None:
    """Whoever writes other documents, and their hash, beside the rows is refused."""
    mine = _imported(store, NAME, TEXTS)
    others = _imported(store, OTHER, [text + " more" for text in TEXTS])
    own, other = pq.read_table(mine), pq.read_table(others)
    one_more = pa.concat_tables([own, own.slice(0, 1)])
    one_other = pa.concat_tables([own.slice(0, 39), other.slice(39, 1)])
    reversed_units = other["unit_id"].take(list(reversed(range(len(own)))))
    moved = own.set_column(1, "unit_id", reversed_units)
    for changed in (other, one_more, one_other, own.slice(1), own.slice(0, 39), moved):
        pq.write_table(changed, mine)
        (mine.parent / HASH).write_text(hash_of(mine))
        with pytest.raises(StorageError, match="not the file that was imported"):
            _check(store, NAME, workers)
    pq.write_table(own, mine)
    with pytest.raises(StorageError, match="not the file that was imported"):
        _check(store, NAME, workers)  # the hash is another file's
    (mine.parent / HASH).write_text(hash_of(mine))
    _check(store, NAME, workers)


def test_what_the_driver_reads_of_a_corpus_holds_no_text(store: DatasetStore) -> None:
    path = _imported(store, NAME, TEXTS)
    whole, expected = path.read_bytes(), corpus_of(store, NAME)
    schema = int.from_bytes(whole[-8:-4], "little") + 8
    assert b"zanzibar" not in whole[-schema:]
    path.write_bytes(b"PAR1" + bytes(len(whole) - schema - 4) + whole[-schema:])
    assert corpus_of(store, NAME) == expected
    with pytest.raises(StorageError, match="not the file that was imported"):
        _check(store, NAME, 1)


def test_rows_find_their_texts(store: DatasetStore) -> None:
    _imported(store, NAME, TEXTS)
    _imported(store, OTHER, [text + " more" for text in TEXTS])
    rows = store.read_transitions(NAME, unit="user")
    order = np.random.default_rng(0).permutation(40)[:9]
    assert texts_of(store, NAME, rows.select(order)) == [TEXTS[place][:20] for place in order]
    with pytest.raises(StorageError, match="not the file that was imported"):
        texts_of(store, OTHER, rows)


def test_a_side_of_a_corpus_has_its_own_documents(store: DatasetStore) -> None:
    _imported(store, NAME, TEXTS)
    found: list[str] = []
    for side in split(store, NAME, held_out_share=0.4, seed=1):
        _check(store, side.id, 2)
        own = list(documents(corpus_of(store, side.id)))
        assert {len(one.text) for one in own} == {20}
        assert 0 < len(own) < 40
        found += [one.whole for one in own]
    assert sorted(found) == sorted(TEXTS)


def test_a_table_holds_no_documents(store: DatasetStore) -> None:
    path = _imported(store, NAME, TEXTS)
    for file in path.parent.iterdir():
        file.unlink()
    path.parent.rmdir()
    with pytest.raises(ConfigError, match="holds no documents"):
        _check(store, NAME, 1)
