"""What a configuration may change of agents, by name; imports no torch."""

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from distributed_privrl.agents.settings import (
    AgentConfig,
    BCConfig,
    CQLConfig,
    DiscreteBCQConfig,
    DiscreteCQLConfig,
    EDACConfig,
    IQLConfig,
    TD3BCConfig,
)
from distributed_privrl.core.checks import did_you_mean
from distributed_privrl.core.errors import ConfigError

DEFAULTS: Mapping[str, AgentConfig] = {
    "bc": BCConfig(),
    "iql": IQLConfig(),
    "td3bc": TD3BCConfig(),
    "edac": EDACConfig(),
    "cql": CQLConfig(),
    "discrete_cql": DiscreteCQLConfig(),
    "discrete_bcq": DiscreteBCQConfig(),
}
"""The default hyper-parameters of the agents that learn from a dataset, by name."""

ConfigT = TypeVar("ConfigT", bound=AgentConfig)


def check_known(name: str, known: Iterable[str]) -> None:
    """Check that a trainer is called ``name``.

    Args:
        name: as in the configuration.
        known: names of the trainers.

    Raises:
        ConfigError: nobody is called that; the message lists the names.
    """
    names = sorted(known)
    if name not in names:
        raise ConfigError(
            f"unknown trainer {name!r}: {did_you_mean(name, names)}choose from {', '.join(names)}"
        )


def settings_named(name: str, options: Mapping[str, Any]) -> AgentConfig:
    """Return the hyper-parameters of the agent called ``name``, some of them changed.

    Raises:
        ConfigError: nobody is called that, or as `with_options`.
    """
    check_known(name, DEFAULTS)
    return with_options(name, DEFAULTS[name], options)


def with_options(name: str, config: ConfigT, options: Mapping[str, Any]) -> ConfigT:
    """Return an agent's hyper-parameters with some of them changed.

    Args:
        name: of the agent.
        config: its hyper-parameters.
        options: those that differ, by name.

    Raises:
        ConfigError: an option is unknown (the message lists the names), of another type or out of
            range.
    """
    settings = {item.name for item in fields(config)}
    if unknown := sorted(set(options) - settings):
        raise ConfigError(
            f"trainer {name!r} has no option {', '.join(unknown)}: choose from"
            f" {', '.join(sorted(settings))}"
        )
    kinds = get_type_hints(type(config))
    values = {key: _of_kind(f"{name}.{key}", value, kinds[key]) for key, value in options.items()}
    return replace(config, **values)


def _of_kind(name: str, value: Any, kind: Any) -> Any:
    """Return an option's value, a list as a tuple, if it is of the type that the option has."""
    found = tuple(value) if isinstance(value, list) else value
    try:
        return TypeAdapter(kind).validate_python(found, strict=True)
    except ValidationError as error:
        raise ConfigError(f"{name}={value!r} must be {_in_words(kind)}") from error


def _in_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return " or ".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list of whole numbers, e.g. [256, 256]"
    return {int: "a whole number", bool: "true or false"}.get(kind, "a number")
