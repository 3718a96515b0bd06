"""YAML that was written to harm, or by mistake: refused in one line, within bounds."""

import pytest

from distributed_privrl.core.config import with_overrides
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import (
    MOST_CHARACTERS,
    MOST_DEPTH,
    MOST_VALUES,
    parse_yaml,
    read_yaml,
)
from tests.worlds.bounded import bounded

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10)
)
CHAIN = f"a0: &a0 {'[' * 60}{']' * 60}\n" + "".join(
    f"a{i}: &a{i} {'[' * 60}*a{i - 1}{']' * 60}\n" for i in range(1, 40)
)
HOSTILE = {
    "aliases that repeat aliases": (BOMB, f"aliases make more than {MOST_VALUES} values"),
    "aliases that go deep": (CHAIN, f"aliases make more than {MOST_DEPTH} sections"),
    "an alias of itself": ("a: &a [*a]", "an alias stands inside what it names"),
    "lists 900 deep": ("a: " + "[" * 900 + "]" * 900, f"more than {MOST_DEPTH} sections"),
    "sections a million deep": ("{a: " * 10**5, f"more than {MOST_DEPTH} sections"),
    "values": (f"a: [{'1,' * (MOST_VALUES + 1)}]", f"more than {MOST_VALUES} values"),
    "characters": ("a: " + "x" * MOST_CHARACTERS, f"more than {MOST_CHARACTERS} characters"),
    "an impossible date": ("a: 1\nb: 2024-13-45", "'2024-13-45' is no date or time .*line 2"),
    "6,000 digits": ("a: " + "1" * 6000, "a whole number has more than 64 characters"),
    "sixties": ("a: 1:" + "59:" * 3000 + "1", "a whole number has more than 64 characters"),
    "no whole number": ("a: !!int ''", "'' is no whole number"),
    "no truth value": ("a: !!bool x", "'x' is no bool"),
    "no time": ("a: !!timestamp x", "'x' is no date or time"),
    "a Python object": ("a: !!python/object/apply:os.abort []", "could not determine a"),
    "a zero byte": ("a: \0", "control characters are not allowed"),
    "half a character": ("a: \ud800", "surrogates not allowed"),
    "a list as a key": ("? [a]\n: 1", "unhashable key"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_yaml_is_refused_in_one_line_within_bounds(name):
    text, message = HOSTILE[name]
    with bounded(seconds=20), pytest.raises(ConfigError, match=message) as caught:
        parse_yaml(text, source="x.yaml")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_what_people_write_passes():
    deep = "a: " + "[" * (MOST_DEPTH - 2) + "]" * (MOST_DEPTH - 2)
    assert parse_yaml(deep, source="x")
    aliases = "a: &a {b: 1e-6, c: 2024-05-31}\nd: {b: 0x1F}\ne: *a"
    value = parse_yaml(aliases, source="x")
    assert value["d"]["b"] == 31
    assert value["e"] == value["a"]
    assert value["a"]["b"] == 1e-6
    many = "".join(f"key{i}: {i}\n" for i in range(5000))
    with bounded(seconds=20):
        assert len(parse_yaml(many, source="x")) == 5000


def test_a_file_that_is_not_utf_8_is_refused(tmp_path):
    path = tmp_path / "x.yaml"
    path.write_bytes("a: é".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"not UTF-8 \(byte 3\): save it as UTF-8"):
        read_yaml(path)
    path.write_bytes("\ufeffa: é".encode())
    assert read_yaml(path) == {"a": "é"}


def test_a_large_file_is_not_read_whole(tmp_path):
    path = tmp_path / "x.yaml"
    with path.open("wb") as file:
        file.truncate(2**36)
    with bounded(), pytest.raises(ConfigError, match=f"more than {MOST_CHARACTERS} characters"):
        read_yaml(path)


@pytest.mark.parametrize("text", ["2024-13-45", "1" * 6000, "[" * 900])
def test_overrides_are_read_by_the_same_rules(text):
    with pytest.raises(ConfigError, match="is not valid YAML"):
        with_overrides({}, [f"seed={text}"])
