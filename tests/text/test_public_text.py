"""Prose of installed packages: found without running anything, each paragraph on one side."""

from pathlib import Path

import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.text.public_text import (
    excerpts,
    installed_documents,
    licences,
    read_documents,
    two_sides,
    write_documents,
)


def package(root: Path, name: str, files: dict[str, str], *, licence: str = "") -> None:
    """Install a made-up distribution into ``root``."""
    metadata = root / f"{name.replace('-', '_')}-1.0.dist-info"
    metadata.mkdir(parents=True)
    stated = f"License-Expression: {licence}\n" if licence else ""
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.4\nName: {name}\nVersion: 1.0\n{stated}"
    )
    for path, content in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(content)
    (metadata / "RECORD").write_text("".join(f"{path},,\n" for path in files))


FIRST = "The first paragraph says something plain about matrices."
SECOND = "Another paragraph speaks of vectors and their usual norms."
THIRD = "Only the second package explains how rivers reach the sea."


@pytest.fixture(autouse=True)
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    symbols = ">>> x = 1 + 2\n\nx[0] += 1; y(z) -> 3 == 4 != 5 and so_on."
    code = f'"""{FIRST}\n\n{symbols}\n"""\nraise SystemExit\n'
    package(
        tmp_path,
        "alpha-prose",
        {
            "alpha/__init__.py": code,
            "alpha/norms.py": f'def norm():\n    """{SECOND}\n\n    {FIRST}\n    """\n',
            "alpha/broken.py": "def (:\n",
            "alpha/tests/test_it.py": f'"""{THIRD}"""\n',
            "alpha/data.bin": THIRD,
        },
        licence="MIT",
    )
    package(tmp_path, "beta-prose", {"beta/guide.md": f"# Guide\n\n{THIRD}\n\n{FIRST}\n"})
    package(tmp_path, "gamma-bare", {"gamma.py": "x = 1\n"})
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_module_is_a_document_of_prose_alone_and_nothing_is_run() -> None:
    found = installed_documents(["alpha-prose"], least_words=5)
    assert [(one.module, one.text) for one in found] == [("alpha", FIRST), ("alpha.norms", SECOND)]
    assert licences(found) == {"alpha-prose": "MIT"}


def test_sides_share_no_paragraph_and_the_public_one_keeps_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert FIRST in "".join(one.text for one in installed_documents(["beta-prose"], least_words=5))
    public, private = two_sides(["alpha-prose"], ["beta-prose"], least_words=5)
    assert [one.text for one in private] == [THIRD]
    assert private[0].licence == "unknown"
    assert public == installed_documents(["alpha-prose"], least_words=5)


@pytest.mark.parametrize("names", [["no-such-package"], ["gamma-bare"]])
def test_packages_without_prose_are_refused(names: list[str]) -> None:
    with pytest.raises(ConfigError, match=names[0]):
        installed_documents(names)


def test_a_package_belongs_to_one_side() -> None:
    with pytest.raises(ConfigError, match="both sides"):
        two_sides(["alpha-prose"], ["alpha-prose"])


def test_documents_outlive_a_file_and_a_damaged_one_is_named(tmp_path: Path) -> None:
    found = installed_documents(["alpha-prose"], least_words=5)
    path = tmp_path / "kept" / "public.jsonl"
    write_documents(path, found)
    assert read_documents(path) == found
    path.write_text("{}\n")
    with pytest.raises(StorageError, match="delete it"):
        read_documents(path)


def test_excerpts_lose_no_word_and_are_short() -> None:
    found = installed_documents(["alpha-prose", "beta-prose"], least_words=1)
    cut = excerpts(found, words=9)
    assert len(cut) == 3
    assert " ".join(one.text for one in cut).split() == " ".join(one.text for one in found).split()
    assert all(len(one.text.split()) <= 12 for one in cut)
