"""Documents are read where they lie; what one record holds decides about itself alone."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.data import corpus
from distributed_privrl.data.corpus import CorpusRef, Turns, check_corpus, documents


def _lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(one) + "\n" for one in records))
    return path


def _check(path: Path, **of_ref: object) -> None:
    check_corpus(CorpusRef(path=str(path), **of_ref))  # type: ignore[arg-type]


def _texts(path: Path, **of_ref: object) -> list[str]:
    return [one.text for one in documents(CorpusRef(path=str(path), **of_ref))]  # type: ignore[arg-type]


def test_three_formats_hold_the_same_documents(tmp_path: Path) -> None:
    texts = ["one", "two", "drei äöü"]
    lines = _lines(tmp_path / "a.jsonl", *({"text": text} for text in texts))
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": texts, "other": [1, 2, 3]}), table)
    folder = tmp_path / "folder"
    (folder / "inner").mkdir(parents=True)
    for number, text in enumerate(texts):
        (folder / "inner" / f"{number}.txt").write_text(text)
    assert _texts(lines) == _texts(table) == _texts(folder) == texts


def test_shares_hold_each_unit_once_and_whole(tmp_path: Path) -> None:
    records = [{"text": f"t{i}", "who": f"p{i % 20}"} for i in range(60)]
    path = _lines(tmp_path / "a.jsonl", *records)
    for unit, units in (("document", 60), ("who", 20)):
        shares = [
            list(documents(CorpusRef(path=str(path), unit=unit, index=index, count=3)))
            for index in range(3)
        ]
        assert sorted(one.text for share in shares for one in share) == sorted(
            one["text"] for one in records
        )
        owners = [{one.unit_id for one in share} for share in shares]
        assert len(set.union(*owners)) == sum(map(len, owners)) == units
        assert all(owners)


def test_what_cannot_be_read_is_left_out_and_changes_no_other(tmp_path: Path) -> None:
    bad = [b"no json", b"[1]", b'{"text": 3}', b'{"other": "x"}', b"", b"[" * 100_000]
    good = [b'{"text": "first", "who": 1}', b'{"text": "second", "who": "1"}']
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n".join([good[0], *bad, good[1]]))
    assert _texts(path) == ["first", "second"]
    nobody = [b'{"text": "x", "who": %s}' % who for who in (b"null", b"true", b"[1]", b"1.5")]
    path.write_bytes(b"\n".join([*good, *nobody, b'{"text": "x"}']))
    found = list(documents(CorpusRef(path=str(path), unit="who")))
    assert [one.text for one in found] == ["first", "second"]
    assert found[0].unit_id == found[1].unit_id  # 1 and "1" are one person, and so are these
    people = (b"1", b"1.0", b'"1.0"', b'" 1"', b'"001"')
    path.write_bytes(b"\n".join(b'{"text": "x", "who": %s}' % who for who in people))
    assert len({one.unit_id for one in documents(CorpusRef(path=str(path), unit="who"))}) == 1


def test_each_record_that_is_left_out_or_changed_is_told_with_its_reason(tmp_path: Path) -> None:
    path, told = tmp_path / "a.jsonl", []
    lines = [
        b'{"text": "kept", "who": 1}',
        b"",
        b"no json",
        b'{"txt": "x", "who": 1}',
        b'{"text": "x"}',
        b'{"text": "a\xff, and long", "who": 2}',
        '{"text": "\N{REPLACEMENT CHARACTER}", "who": 3}'.encode(),
    ]
    path.write_bytes(b"\n".join(lines))
    ref = CorpusRef(path=str(path), unit="who", max_characters=9)
    assert len(list(documents(ref, lambda *one: told.append(one)))) == 3
    assert told == [
        ("no JSON object in the line", "left out"),
        ("no text under 'text'", "left out"),
        ("nobody named under 'who'", "left out"),
        ("bytes that are no UTF-8", "they became the replacement character"),
        ("more than 9 characters", "the rest is not read"),
    ]


def test_the_mark_that_editors_write_before_utf_8_costs_no_document(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "a"}\n{"text": "b"}\n', encoding="utf-8-sig")
    assert _texts(path) == ["a", "b"]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    lines = tmp_path / "a.jsonl"
    lines.write_bytes(b'{"text": "a\xff\xfeb"}\n{"text": "\\ud800"}\n')
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": pa.array([b"a\xff\xfeb", None], pa.binary())}), table)
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "0.txt").write_bytes(b"a\xff\xfeb")
    assert _texts(lines) == ["a��b", "?"]
    assert _texts(table) == _texts(folder) == ["a��b"]


def test_a_document_of_10_megabytes_is_cut_and_duplicates_count(tmp_path: Path) -> None:
    path = _lines(tmp_path / "a.jsonl", {"text": "x" * 10_000_000}, {"text": "a"}, {"text": "a"})
    long, *same = documents(CorpusRef(path=str(path), max_characters=100))
    assert long.text == "x" * 100
    assert [one.text for one in same] == ["a", "a"]
    assert same[0].unit_id != same[1].unit_id


TURNS = Turns(speaker="role", said="content")


def test_a_column_of_turns_is_a_line_a_turn(tmp_path: Path) -> None:
    talks = [
        [
            {"role": "user", "content": "a\nb", "toxic": False},
            {"role": "assistant", "content": "c ", "toxic": True},
        ],
        None,
        [{"role": "user", "content": None, "toxic": False}],
        [],
        [{"role": "user", "content": "d", "toxic": False}, None],
        [{"role": "user", "content": "e", "toxic": False}],
    ]
    lines = _lines(tmp_path / "a.jsonl", *({"conversation": talk} for talk in talks), {"x": 1})
    table = tmp_path / "a.parquet"
    pq.write_table(pa.table({"other": range(6), "conversation": talks}), table, row_group_size=2)
    broken = tmp_path / "b.parquet"
    said = pa.array([b"a\xff", b"b"], pa.binary())
    turns = pa.StructArray.from_arrays([pa.array(["x y", "z"]), said], ["role", "content"])
    pq.write_table(pa.table({"conversation": pa.ListArray.from_arrays([0, 2], turns)}), broken)
    of_ref = {"column": "conversation", "turns": TURNS}
    for path in (lines, table):
        assert _texts(path, **of_ref) == ["User: a b\nAssistant: c", "", "User: e"]
    assert _texts(broken, **of_ref) == ["X y: a\ufffd\nZ: b"]


def test_a_line_without_end_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "LONGEST_LINE", 32)
    path = _lines(tmp_path / "a.jsonl", {"text": "a"}, {"text": "x" * 80}, {"text": "b"})
    assert _texts(path) == ["a", "b"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "folder"])
def test_an_empty_corpus_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    if name == "folder":
        path.mkdir()
    elif name == "a.jsonl":
        path.touch()
    else:
        pq.write_table(pa.table({"text": pa.array([], pa.string())}), path)
    with pytest.raises(ConfigError, match="holds no document"):
        _check(path)


def test_what_is_no_corpus_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no corpus at"):
        _check(tmp_path / "none.jsonl")
    (tmp_path / "a.csv").write_text("text\n")
    with pytest.raises(ConfigError, match=r"neither JSONL.*pandas\.read_csv\('a\.csv'\)"):
        _check(tmp_path / "a.csv")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": [1.0], "who": [1.0]}), path)
    with pytest.raises(ConfigError, match="must hold text"):
        _check(path)
    pq.write_table(pa.table({"text": ["a"], "who": [1.0]}), path)
    with pytest.raises(ConfigError, match="must hold text"):
        _check(path, unit="who")
    with pytest.raises(ConfigError, match="has no column name"):
        _check(path, unit="name")
    with pytest.raises(ConfigError, match="is a folder"):
        _check(tmp_path, unit="who")
    with pytest.raises(ConfigError, match="which has no columns"):
        _check(tmp_path, column="body")
    for column in ("text", "who"):
        with pytest.raises(ConfigError, match="lists of records with the texts role and content"):
            _check(path, column=column, turns=TURNS)
    path.write_bytes(b"canary-4711" * 10)
    with pytest.raises(StorageError) as refused:
        _check(path)
    assert "canary" not in str(refused.value)
    with pytest.raises(ConfigError, match="index"):
        CorpusRef(path="a", index=2, count=2)
