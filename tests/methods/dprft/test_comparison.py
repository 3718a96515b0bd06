"""The private report holds released texts against the documents; the public one does not."""

import json
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.executor import LocalExecutor
from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.experiments.reports import rebuild_report
from distributed_privrl.methods.dprft import comparison
from distributed_privrl.methods.dprft.comparison import (
    BEFORE,
    TITLE,
    Compared,
    Comparisons,
    ComparisonSpec,
    TextComparer,
    _sections,
)
from distributed_privrl.methods.dprft.config import UNTUNED
from tests.worlds.notes import CANARY, LearnedNotes, Notes

REAL = [f"the patient of bed {i} came in with a cough and left after day {i % 7}" for i in range(9)]
OWN = "somebody else wrote of quite other things than any of these notes here"


def found_of(folder: Path, texts: Sequence[str], untuned: Sequence[str] = ()) -> Comparisons:
    path = folder / "corpus.jsonl"
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in REAL))
    corpus = CorpusRef(path=str(path))
    spec = ComparisonSpec(corpus=corpus, texts=tuple(texts), untuned=tuple(untuned), seed=0)
    return TextComparer(spec).compared()


def compared(folder: Path, texts: Sequence[str]) -> tuple[Compared, Compared]:
    found = found_of(folder, texts)
    assert found.before is None
    return found.own, found.reference


def notes_of(folder: Path, texts: Sequence[str], untuned: Sequence[str] = ()) -> list[str]:
    first, *_ = _sections(found_of(folder, texts, untuned))
    return list(first.notes)


@pytest.mark.parametrize("most", [1000, 6])
def test_a_copied_document_is_counted_whichever_are_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(comparison, "_MOST", most)
    for document in REAL:
        own, _ = compared(tmp_path, [document, OWN, OWN, f"{OWN} and so on"])
        assert (own.copied.texts, own.copied.longest) == (0.25, len(document.split()))
        assert own.likeness.duplicates == 0.25


def test_near_texts_are_near_and_documents_stand_beside_them(tmp_path: Path) -> None:
    near, reference = compared(tmp_path, [one.replace("cough", "cold") for one in REAL])
    far, _ = compared(tmp_path, [OWN, f"{OWN} too"])
    assert near.likeness.similarity > far.likeness.similarity
    assert near.likeness.most_jaccard > 0.8 > far.likeness.most_jaccard
    assert near.likeness.frechet < far.likeness.frechet
    assert 0.5 < reference.likeness.nearest < 1
    assert reference.copied.longest < 15, "a document is no copy of itself"
    assert not far.copied.longest


def test_a_document_of_any_length_takes_little_to_stand_for_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = compared(tmp_path, [OWN, f"{OWN} too"])
    monkeypatch.setattr(comparison, "_LONGEST", 20)  # fewer than eight words
    _, cut = compared(tmp_path, [OWN, f"{OWN} too"])
    assert whole.copied.longest >= 8 > cut.copied.longest


def test_more_copies_than_documents_have_are_noted(tmp_path: Path) -> None:
    assert "at most 15" in notes_of(tmp_path, REAL)[0]
    assert not any("in a row" in one for one in notes_of(tmp_path, [OWN] * 2))


def test_words_that_no_document_has_are_noted(tmp_path: Path) -> None:
    broken = [one.replace("patient", "patgient").replace("cough", "cougad") for one in REAL]
    (note,) = notes_of(tmp_path, broken)
    assert note.startswith("15.38% of the words of the texts stand in none of the documents")
    assert not notes_of(tmp_path, [" ".join(one.split()[:7]) for one in REAL])


def test_what_the_training_brought_no_nearer_is_noted(tmp_path: Path) -> None:
    near = [" ".join(one.split()[:7]) for one in REAL]
    far = [OWN, f"{OWN} too", f"{OWN} again"]
    assert not notes_of(tmp_path, near, far)
    (note,) = (one for one in notes_of(tmp_path, far, near) if "the model before" in one)
    assert "by mean similarity, by similarity with the nearest document" in note
    assert "they are;" not in note
    found = found_of(tmp_path, near * 3, far)
    assert found.before is not None
    titles = [one.title for one in _sections(found)]
    assert titles == [TITLE, BEFORE]


def test_as_many_texts_are_compared_as_the_model_before_wrote(tmp_path: Path) -> None:
    found = found_of(tmp_path, [*REAL, OWN], [REAL[0], REAL[0], OWN])
    few = found.own.likeness
    assert found.own.copied.texts == 0.9, "copies are looked for in all texts"
    assert few != compared(tmp_path, [*REAL, OWN])[0].likeness


@pytest.mark.parametrize("kind", [Notes, LearnedNotes])
def test_a_run_s_private_report_alone_has_figures_of_documents(
    tmp_path: Path, kind: type[Notes]
) -> None:
    world = kind(tmp_path).budget()
    world.run(key=None)
    run = tmp_path / "run"
    public, private = (
        json.loads((run / place / "report.json").read_text()) for place in (".", "private")
    )
    assert TITLE not in [one["title"] for one in public["sections"]]
    assert [one["title"] for one in private["sections"]] == [TITLE, BEFORE]
    assert len((run / UNTUNED).read_text().splitlines()) == 5
    assert stat.S_IMODE((run / "private" / "report.html").stat().st_mode) == 0o600
    names = {one["name"]: one for one in private["sections"][0]["metrics"]}
    assert names["words of the longest copy"]["value"] == 0
    assert names["mean similarity"]["reference"] > names["mean similarity"]["value"]
    assert CANARY not in (run / "private" / "report.html").read_text()
    world.check_leaks("")
    (run / "private" / "report.html").unlink()
    rebuild_report(run, store=world.store, ledger_url=world.url)
    assert json.loads((run / "private" / "report.json").read_text()) == private


def test_what_cannot_be_compared_is_a_line_of_the_private_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> Any:
        raise ValueError("a reason, and \ud800, which no file can hold")

    monkeypatch.setattr(TextComparer, "compared", fails)
    Notes(tmp_path).budget().run(key=None, training__steps=1, executor=LocalExecutor())
    run = tmp_path / "run"
    assert "a reason" in (run / "private" / "report.json").read_text()
    assert "a reason" not in (run / "report.json").read_text()
