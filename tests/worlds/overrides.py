"""Configurations of tests, which keywords change."""

from collections.abc import Mapping
from typing import Any, TypeVar

from distributed_privrl.core.config import RunConfig
from distributed_privrl.experiments.registry import parse_config

ConfigT = TypeVar("ConfigT", bound=RunConfig)


def changed(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``values`` with ``section__key=value`` set, at any depth; the given ones stay."""
    made = dict(values)
    for path, value in changes.items():
        *sections, key = path.split("__")
        target = made
        for section in sections:
            target[section] = {**target.get(section, {})}
            target = target[section]
        target[key] = value
    return made


def parsed(values: Mapping[str, Any], *kinds: type[ConfigT]) -> ConfigT:
    """Return the configuration, which is of one of these kinds."""
    config = parse_config(values, source="test")
    assert isinstance(config, kinds)
    return config
