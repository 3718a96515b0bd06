"""Without the extra: one line that names it, exit 5; no module needs it to be imported."""

import ast
import sys
from pathlib import Path

import pytest

import distributed_privrl.text
from distributed_privrl.core.errors import MissingExtraError
from distributed_privrl.text.extra import text_package

OPTIONAL = {"transformers", "tokenizers", "trl", "datasets", "sentence_transformers"}


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[text\]") as caught:
        text_package("transformers")
    assert caught.value.exit_code == 5


def test_no_module_imports_an_optional_package_at_its_top() -> None:
    files = sorted(Path(distributed_privrl.text.__file__).parent.glob("*.py"))
    assert len(files) > 15
    for path in files:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not OPTIONAL & {name.partition(".")[0] for name in names}, path.name
