"""What is wrong with a configuration, in one clause a key: pydantic's errors for people."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from distributed_privrl.core.places import ObjectUri

_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text",
    Path: "a path",
    ObjectUri: "a URI",
    bool: "true or false",
}
_MOVED = {
    "training.micro_batch_rows": "runtime.micro_batch_rows",
    "training.pretraining.keep": "runtime.pretrained",
    "training.policy.checkpoint_steps": "runtime.checkpoint_steps",
}
"""Keys of earlier versions, and what they are called now."""
_MESSAGES = {
    "path_type": "must be a path",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must be keys and values",
}


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an error is.

    Args:
        keys: as a user writes them.
        section: the configuration class that the last key is, or would be, a field of.
        choices: what the last key may be, where the error is that a value is not this one of them.
    """

    keys: tuple[str, ...]
    section: type[BaseModel] | None
    choices: tuple[Any, ...] = ()


def problems(model: type[BaseModel], error: ValidationError) -> list[str]:
    """Return what is wrong, a clause for each key.

    Where a key may be several things, what is wrong with the one that was meant is said, or, if
    none can have been meant, what it may be.

    Args:
        model: the class that was to be made.
        error: of the attempt.
    """
    found = [(_place(model, item["loc"]), item) for item in error.errors(include_url=False)]
    meant = {place.keys for place, item in found if not _is_other_choice(place, item["type"])}
    places = {place.keys for place, _ in found}
    clauses: dict[str, None] = {}
    for place, item in found:
        if not _is_other_choice(place, item["type"]):
            clauses[_clause(place, item)] = None
        elif place.keys not in meant and not any(_within(keys, place.keys) for keys in places):
            clauses[_choices_clause(place, item["input"])] = None
    return list(clauses)


def fields_by_key(section: type[BaseModel]) -> dict[str, FieldInfo]:
    """Return the fields of a section by the keys that a user writes."""
    return {field.alias or name: field for name, field in section.model_fields.items()}


def _within(keys: tuple[str, ...], outer: tuple[str, ...]) -> bool:
    return len(keys) > len(outer) and keys[: len(outer)] == outer


def _place(model: type[BaseModel], location: Sequence[int | str]) -> _Place:
    """Return the keys of a location, without the parts that name a choice among several types."""
    keys: tuple[str, ...] = ()
    kind: Any = model
    section: type[BaseModel] | None = None
    choices: tuple[Any, ...] = ()
    for part in location:
        choices, kinds = (), _choices(kind)
        if len(kinds) > 1:
            kind = next((one for one in kinds if _is_called(one, part)), None)
            choices = kinds
            continue
        section = kinds[0] if kinds and _is_section(kinds[0]) else None
        field = fields_by_key(section).get(str(part)) if section is not None else None
        keys, kind = (*keys, str(part)), field.annotation if field is not None else None
    return _Place(keys=keys, section=section, choices=choices)


def _is_called(kind: Any, name: int | str) -> bool:
    """Say whether a location calls a section ``name``: its class, or the value that tells it."""
    if not _is_section(kind):
        return False
    fields = kind.model_fields.values()
    return kind.__name__ == name or any(name in get_args(one.annotation) for one in fields)


def _choices(kind: Any) -> tuple[Any, ...]:
    """Return the types that a value may have, without None."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    members = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    return tuple(
        get_args(one)[0] if get_origin(one) is Annotated else one
        for one in members
        if one not in (None, type(None))
    )


def _is_section(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)


def _is_other_choice(place: _Place, error: str) -> bool:
    return bool(place.choices) and (
        error.endswith(("_type", "_parsing")) or error in ("literal_error", "is_instance_of")
    )


def _clause(place: _Place, item: Any) -> str:
    path = ".".join(place.keys)
    if item["type"] == "extra_forbidden" and path in _MOVED:
        return f"{path!r} is called {_MOVED[path]!r} now"
    if item["type"] == "extra_forbidden":
        known = ", ".join(fields_by_key(place.section)) if place.section is not None else ""
        return f"unknown key {path!r}{f' (known: {known})' if known else ''}"
    if item["type"] == "missing":
        return f"{path!r} is missing{_meaning(place)}"
    message = _MESSAGES.get(item["type"], item["msg"].removeprefix("Value error, "))
    if isinstance(item["input"], Mapping):  # of a section as a whole, whose keys say enough
        return f"{path}: {message}" if path else message
    return f"{path}={item['input']!r}: {message}"


def _meaning(place: _Place) -> str:
    """Return what a key is, in brackets, as far as its section says."""
    known = fields_by_key(place.section) if place.section is not None else {}
    described = known.get(place.keys[-1]) if place.keys else None
    return "" if described is None or not described.description else f" ({described.description})"


def _choices_clause(place: _Place, value: Any) -> str:
    names = [name for kind in place.choices for name in _names(kind)]
    return f"{'.'.join(place.keys)}={value!r}: must be {', '.join(names[:-1])} or {names[-1]}"


def _names(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [repr(value) for value in get_args(kind)]
    if _is_section(kind):
        needed = [key for key, field in fields_by_key(kind).items() if field.is_required()]
        return [f"{{{', '.join(f'{name}: ...' for name in needed)}}}"]
    if get_origin(kind) in (list, tuple):
        return ["a list"]
    return [_NAMES.get(kind, str(kind))]
