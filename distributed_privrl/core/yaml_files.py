"""The one door for YAML: as people write it, and within bounds where it was written to harm.

Sizes, depth and what aliases repeat are bounded before a value is built, so that a text takes
seconds and some hundred megabytes at most.
"""

import re
from collections import Counter
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import storage_errors

MOST_CHARACTERS = 2**20
"""Of a text."""
MOST_DEPTH = 64
"""Lists and sections within each other."""
MOST_VALUES = 2**17
"""Of a text, those that aliases repeat counted each time."""
LONGEST_NUMBER = 64
"""Characters of a whole number."""
_KINDS = {"timestamp": "date or time", "int": "whole number", "float": "number"}
_SHOWN_BLANKS = 8
_WRONG_VALUES = (ValueError, LookupError, AttributeError, TypeError, ArithmeticError)
"""What PyYAML's constructors raise for dates, numbers and tags whose text is none."""


class _Measure(NamedTuple):
    """Of the values that a node stands for: their number, and sections within each other."""

    size: int
    depth: int


class _Loader(yaml.CSafeLoader):
    """YAML 1.2 floats (``1e-6`` is a number), short whole numbers and no duplicate keys."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Return the value of a node; what its tag or form promises and does not hold is named."""
        try:
            return super().construct_object(node, deep)
        except _WRONG_VALUES as error:
            shown = str(node.value)[:LONGEST_NUMBER]
            kind = node.tag.rpartition(":")[2]
            raise _refused(f"{shown!r} is no {_KINDS.get(kind, kind)}", node) from error


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d[\d_]*)(\.[\d_]*)?([eE][-+]?\d+)$|^[-+]?\.\d+([eE][-+]?\d+)?$"),
    list("-+0123456789."),
)


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    counts = Counter(key for key in keys if isinstance(key, Hashable))
    if twice := {str(key) for key, count in counts.items() if count > 1}:
        raise yaml.constructor.ConstructorError(
            None, None, f"key given twice: {', '.join(sorted(twice))}", node.start_mark
        )
    return dict(loader.construct_mapping(node, deep=True))


def _whole_number(loader: _Loader, node: yaml.ScalarNode) -> int:
    if len(node.value) > LONGEST_NUMBER:
        raise _refused(f"a whole number has more than {LONGEST_NUMBER} characters", node)
    return int(loader.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _whole_number)
_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def parse_yaml(text: str, *, source: str) -> Any:
    """Return the YAML value in ``text``.

    Raises:
        ConfigError: not YAML, too large or too deep, a key given twice, or blanks: keys or items
            after which nothing stands, not even null. The message is one line with ``source``, and
            with the line of each blank.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{source} has more than {MOST_CHARACTERS} characters: make it shorter")
    try:
        node, value = _composed(text)
    except (yaml.YAMLError, UnicodeEncodeError) as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    if blanks := [] if node is None else list(_blanks(node)):
        shown = [f"{name} (line {line})" for name, line in blanks[:_SHOWN_BLANKS]]
        more = f" and {len(blanks) - len(shown)} more" if len(blanks) > len(shown) else ""
        raise ConfigError(
            f"{source} has blanks, fill in {', '.join(shown)}{more}; null says that nothing is"
            " meant to stand there"
        )
    return value


def _composed(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the nodes of a text and its value."""
    _check_size(text)
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None, None
        _measured(node, {})
        return node, loader.construct_document(node)
    finally:
        loader.dispose()


def _check_size(text: str) -> None:
    """Refuse too many values, or too deep ones, before a node is made: libyaml's are nested in C.

    Raises:
        YAMLError: they are, or the text is no YAML.
    """
    depth = values = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        values += isinstance(event, yaml.NodeEvent)
        if depth > MOST_DEPTH:
            raise _refused(f"more than {MOST_DEPTH} sections within each other", event)
        if values > MOST_VALUES:
            raise _refused(f"more than {MOST_VALUES} values", event)


def _measured(node: yaml.Node, known: dict[int, _Measure | None]) -> _Measure:
    """Return how many values a node stands for, and how deep they lie, aliases followed.

    Args:
        node: its text lies no deeper than `MOST_DEPTH`.
        known: of nodes by their id; None while they are measured.

    Raises:
        YAMLError: too many values, too deep, or an alias inside what it names.
    """
    if id(node) in known:
        found = known[id(node)]
        if found is None:
            raise _refused("an alias stands inside what it names", node)
        return found
    known[id(node)] = None
    inner: list[yaml.Node] = []
    if isinstance(node, yaml.MappingNode):
        inner = [part for pair in node.value for part in pair]
    elif isinstance(node, yaml.SequenceNode):
        inner = node.value
    parts = [_measured(part, known) for part in inner]
    size = 1 + sum(part.size for part in parts)
    depth = 1 + max((part.depth for part in parts), default=0)
    if size > MOST_VALUES:
        raise _refused(f"aliases make more than {MOST_VALUES} values of it", node)
    if depth > MOST_DEPTH:
        raise _refused(f"aliases make more than {MOST_DEPTH} sections within each other", node)
    known[id(node)] = measure = _Measure(size, depth)
    return measure


def _refused(reason: str, node: yaml.Node | yaml.Event) -> yaml.YAMLError:
    mark: Any = node.start_mark
    return yaml.composer.ComposerError(None, None, reason, mark)


def _blanks(
    node: yaml.Node, name: str = "", seen: set[int] | None = None
) -> Iterator[tuple[str, int]]:
    """Yield key and line of each value that is left blank; what aliases repeat, once."""
    seen = set() if seen is None else seen
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _blanks(value, f"{name}.{key.value}" if name else str(key.value), seen)
    elif isinstance(node, yaml.SequenceNode):
        for place, value in enumerate(node.value):
            yield from _blanks(value, f"{name}[{place}]", seen)
    elif node.value == "" and node.tag.endswith(":null") and name:
        yield name, node.start_mark.line + 1


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in the YAML file at ``path``.

    Raises:
        ConfigError: the file is missing, or holds something else.
        StorageError: the file cannot be read.
    """
    if not path.is_file():
        raise ConfigError(f"no file at {path}: give the path of a YAML file")
    with storage_errors(f"read {path}"), path.open("rb") as file:
        content = file.read(4 * MOST_CHARACTERS + 1)  # a character has four bytes at most
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is not UTF-8 (byte {error.start}): save it as UTF-8 in your editor"
        ) from error
    return mapping_in(text, source=str(path))


def mapping_in(text: str, *, source: str) -> dict[str, Any]:
    """Return the mapping in a YAML text.

    Args:
        text: what is written.
        source: its name, for messages.

    Raises:
        ConfigError: it holds something else.
    """
    value = parse_yaml(text, source=source)
    if not isinstance(value, dict):
        raise ConfigError(f"{source} must hold keys and values, got {type(value).__name__}")
    return value
