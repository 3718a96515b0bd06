"""Texts beside real ones: the table tells near ones from far ones, and the figure shows both."""

import json
from pathlib import Path

import pytest

from benchmarks import text_figures
from distributed_privrl.core.errors import ConfigError
from tests.text.small import language

REAL = [f"User: where is bed {i}\nAssistant: bed {i} is in ward {i % 3}" for i in range(8)]
NEAR = [f"User: where is bed {i}\nAssistant: bed {i} is in a ward" for i in range(20, 24)]
FAR = ["prices of grain rose again this quarter said the ministry of trade and of labour"] * 4


def _write(path: Path, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return path


def test_near_texts_are_told_from_far_ones_and_both_are_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    real = _write(tmp_path / "real.jsonl", REAL)
    sets = [
        f"{name}={_write(tmp_path / f'{name}.jsonl', texts)}"
        for name, texts in {"near": NEAR, "far": FAR, "same": REAL}.items()
    ]
    language().save(tmp_path / "language")
    where = ["--language", str(tmp_path / "language"), "--out", str(tmp_path / "out")]
    text_figures.main(["--real", str(real), "--texts", *sets, *where])
    last = capsys.readouterr().out.strip().splitlines()[-1]
    assert json.loads(last)["benchmark"] == "text_figures"
    found = json.loads((tmp_path / "out" / "text_figures.json").read_text())
    rows = {row["texts"]: row for row in found["cells"]}
    near, far, same = rows["near"], rows["far"], rows["same"]
    for name in ("similarity", "nearest", "nearest jaccard"):
        assert near[name] > far[name], name
    for name in ("frechet", "words", "turns", "words a turn", "duplicates", "foreign words"):
        assert near[name] < far[name], name
    assert (near["duplicates"], far["duplicates"]) == (0, 0.75)
    assert (same["nearest jaccard"], same["copies"], same["words a turn"]) == (1, 1, 0)
    assert far["copies"] == 0
    assert rows["real"]["number"] == 4
    assert all(0 <= row["next token"] <= 1 for row in rows.values())
    assert (tmp_path / "out" / "text_figures.png").stat().st_size


@pytest.mark.drawn
def test_what_differs_is_drawn_otherwise() -> None:
    pictures = {text_figures.figure_of({"a": texts}, REAL) for texts in (NEAR, FAR)}
    assert len(pictures) == 2
    assert all(one.startswith(b"\x89PNG") for one in pictures)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    few = _write(tmp_path / "few.jsonl", REAL[:3])
    with pytest.raises(ConfigError, match="at least 4"):
        text_figures.read(few)
    for wrong in ("a", "real=b.jsonl"):
        with pytest.raises(SystemExit):
            text_figures.main(["--real", str(few), "--texts", wrong])
