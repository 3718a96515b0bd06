"""Without the extra: one line that names it, exit 5; the package itself imports."""

import subprocess
import sys

import pytest

from distributed_privrl.core.errors import MissingExtraError
from distributed_privrl.text.extra import text_package


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"distributed_privrl\[text\]") as caught:
        text_package("transformers")
    assert caught.value.exit_code == 5


def test_the_package_imports_without_the_extra() -> None:
    code = """
import importlib, pkgutil, sys
for name in ("transformers", "tokenizers", "trl", "datasets", "sentence_transformers", "ray"):
    sys.modules[name] = None
import distributed_privrl.text as text
for module in pkgutil.iter_modules(text.__path__):
    importlib.import_module(f"{text.__name__}.{module.name}")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
