"""Prose that people wrote and that is on this machine: docstrings and manuals of packages.

A module is a document. Nothing is imported or run: files are read and parsed.
"""

import ast
import importlib.metadata
import inspect
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.files import storage_errors, write_atomically

PUBLIC_PACKAGES = ("numpy", "scipy", "scikit-learn", "matplotlib")
"""A family of packages whose prose may stand for what is public."""
PRIVATE_PACKAGES = ("torch", "gymnasium", "opacus")
"""A family whose prose may stand for what is sensitive, in demonstrations and benchmarks."""

_MANUALS = {".rst", ".md"}
_LONGEST_FILE = 2_000_000
"""Bytes: longer files hold generated code."""
_LEAST_WORDS = 6
_LEAST_PROSE = 0.85
"""Share of a paragraph's words that are made of letters."""
_WORD = re.compile(r"[A-Za-z][A-Za-z'-]*[,.;:)]?$")
_MARKUP = re.compile(r":[a-z:]+:(?=`)|[`*]+")


@dataclass(frozen=True, kw_only=True)
class PublicDocument:
    """What a module, or a page of a manual, says in prose.

    Args:
        text: paragraphs, each a line.
        module: of which it is the documentation, e.g. ``"numpy.linalg"``.
        package: distribution that holds it.
        licence: of that distribution, as its metadata name it.
    """

    text: str
    module: str
    package: str
    licence: str


def installed_documents(
    packages: Sequence[str], *, least_words: int = 20, skip: Iterable[str] = ()
) -> tuple[PublicDocument, ...]:
    """Return the documents of installed packages, each paragraph once, in a fixed order.

    Args:
        packages: names of distributions.
        least_words: documents with fewer words are left out.
        skip: paragraphs that count as seen.

    Raises:
        ConfigError: a package is not installed, or none of them has prose.
    """
    seen, found = set(skip), []
    for package in packages:
        try:
            distribution = importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError as error:
            raise ConfigError(f"package {package!r} is not installed: name one that is") from error
        licence = _licence(distribution)
        for path in sorted(distribution.files or (), key=str):
            text = "\n".join(_unseen(_paragraphs(Path(str(path.locate()))), seen))
            if len(text.split()) >= least_words:
                module = ".".join(Path(str(path)).with_suffix("").parts).removesuffix(".__init__")
                found.append(
                    PublicDocument(text=text, module=module, package=package, licence=licence)
                )
    if not found:
        raise ConfigError(f"packages {list(packages)} have no prose: name others")
    return tuple(found)


def two_sides(
    public: Sequence[str] = PUBLIC_PACKAGES,
    private: Sequence[str] = PRIVATE_PACKAGES,
    *,
    least_words: int = 20,
) -> tuple[tuple[PublicDocument, ...], tuple[PublicDocument, ...]]:
    """Return documents of two families that share no package and no paragraph.

    Paragraphs that both have stay on the public side, so that it does not depend on the other.

    Raises:
        ConfigError: the families overlap; see also `installed_documents`.
    """
    both = sorted(set(public) & set(private))
    if both:
        raise ConfigError(f"packages {both} are named on both sides: a package belongs to one")
    first = installed_documents(public, least_words=least_words)
    known = {line for document in first for line in document.text.splitlines()}
    return first, installed_documents(private, least_words=least_words, skip=known)


def excerpts(documents: Iterable[PublicDocument], *, words: int) -> tuple[PublicDocument, ...]:
    r"""Cut documents between paragraphs, so that few pieces have more than ``words`` words.

    Args:
        documents: whole ones.
        words: most words of a piece; a paragraph that is longer stays whole.

    Example:
        >>> lines = "\n".join(["One two.", "Three.", "Four."])
        >>> whole = PublicDocument(text=lines, module="m", package="p", licence="l")
        >>> [piece.text.split() for piece in excerpts([whole], words=3)]
        [['One', 'two.', 'Three.'], ['Four.']]
    """
    cut = []
    for document in documents:
        pieces: list[list[str]] = [[]]
        for paragraph in document.text.splitlines():
            if pieces[-1] and len(" ".join([*pieces[-1], paragraph]).split()) > words:
                pieces.append([])
            pieces[-1].append(paragraph)
        cut += [replace(document, text="\n".join(piece)) for piece in pieces]
    return tuple(cut)


def write_documents(path: Path, documents: Iterable[PublicDocument]) -> None:
    """Write documents as JSON lines: the file serves as a corpus, and `read_documents` reads it.

    Raises:
        StorageError: the file cannot be written.
    """
    lines = (json.dumps(asdict(document), ensure_ascii=False) for document in documents)
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def read_documents(path: Path) -> tuple[PublicDocument, ...]:
    """Return what `write_documents` wrote; parsing thousands of modules anew takes seconds.

    Raises:
        StorageError: the file cannot be read.
    """
    with storage_errors(f"read {path}"):
        lines = path.read_text(encoding="utf-8").split("\n")
    try:
        return tuple(PublicDocument(**json.loads(line)) for line in lines if line)
    except (ValueError, TypeError) as error:
        raise StorageError(
            f"{path} holds no documents: delete it to have them read anew"
        ) from error


def licences(documents: Iterable[PublicDocument]) -> dict[str, str]:
    """Return the licence of each package that documents come from."""
    return {document.package: document.licence for document in documents}


def _licence(distribution: importlib.metadata.Distribution) -> str:
    metadata = distribution.metadata
    classified = [
        one.rpartition(" :: ")[2]
        for one in metadata.get_all("Classifier") or ()
        if one.startswith("License ::")
    ]
    named = (*(metadata.get_all("License-Expression") or ()), *(metadata.get_all("License") or ()))
    stated = "".join(named[:1]).strip()
    return (classified[0] if classified else stated.splitlines()[0] if stated else "") or "unknown"


def _paragraphs(path: Path) -> Iterator[str]:
    """Yield the prose of a file, a paragraph at a time; other files have none."""
    if path.suffix not in {".py", *_MANUALS} or {"tests", "test"} & set(path.parts):
        return
    try:
        if path.stat().st_size > _LONGEST_FILE:
            return
        source = path.read_text(encoding="utf-8")
        pieces = _docstrings(source) if path.suffix == ".py" else [source]
    except (OSError, UnicodeDecodeError, SyntaxError, ValueError, RecursionError):
        return
    for piece in pieces:
        for block in re.split(r"\n\s*\n", piece):
            words = _MARKUP.sub("", block).split()
            if _is_prose(words):
                yield " ".join(words)


def _docstrings(source: str) -> list[str]:
    owners = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = (node for node in ast.walk(ast.parse(source)) if isinstance(node, owners))
    found = (ast.get_docstring(node, clean=False) for node in nodes)
    return [inspect.cleandoc(one) for one in found if one]


def _is_prose(words: Sequence[str]) -> bool:
    if len(words) < _LEAST_WORDS or not words[-1].endswith(".") or not words[0][0].isupper():
        return False
    return sum(bool(_WORD.match(word)) for word in words) >= _LEAST_PROSE * len(words)


def _unseen(paragraphs: Iterable[str], seen: set[str]) -> Iterator[str]:
    for paragraph in paragraphs:
        if paragraph not in seen:
            seen.add(paragraph)
            yield paragraph
