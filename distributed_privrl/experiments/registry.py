"""Which methods are installed, by name: found through entry points, ours among them."""

from __future__ import annotations

import functools
import importlib.metadata
import reprlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distributed_privrl.core.config import RunConfig, validate, with_overrides
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.yaml_files import read_yaml

if TYPE_CHECKING:
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.evaluation.method import Method
    from distributed_privrl.privacy.events import Event
    from distributed_privrl.stages.plan import Plan
    from distributed_privrl.stages.planning import PlanOfUnits

GROUP = "distributed_privrl.methods"
"""Of entry points: functions without arguments that return a `Method`, by its name."""


class _InstalledMethods(Mapping[str, Callable[[], "Method"]]):
    """What installed packages offer, by name; imported when it is asked for."""

    def __getitem__(self, name: str) -> Callable[[], Method]:
        found = _entry_points(tuple(sys.path)).get(name, [])
        if not found:
            raise KeyError(name)
        if len(found) > 1:
            raise ConfigError(
                f"method {name!r} is offered by {' and '.join(map(_package, found))}: uninstall one"
            )
        try:
            make: Callable[[], Method] = found[0].load()
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"method {name!r} of {_package(found[0])} cannot be imported: {error}"
            ) from error
        return make

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(_entry_points(tuple(sys.path))))

    def __len__(self) -> int:
        return len(_entry_points(tuple(sys.path)))


METHODS: Mapping[str, Callable[[], Method]] = _InstalledMethods()


@functools.lru_cache(maxsize=4)
def _entry_points(_path: tuple[str, ...]) -> dict[str, list[importlib.metadata.EntryPoint]]:
    """Return the entry points of the group by name, as installed on a search path."""
    found: dict[str, list[importlib.metadata.EntryPoint]] = {}
    for point in importlib.metadata.entry_points(group=GROUP):
        if all(point.value != other.value for other in found.get(point.name, [])):
            found.setdefault(point.name, []).append(point)
    return found


def _package(point: importlib.metadata.EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.value


def package_of(name: str) -> tuple[str, str] | None:
    """Return name and version of the package that offers a method; None: nobody knows."""
    points = _entry_points(tuple(sys.path)).get(name, [])
    dist = points[0].dist if points else None
    return None if dist is None else (dist.name, dist.version)


def method_named(name: object) -> Method:
    """Return the method called ``name``.

    Raises:
        ConfigError: there is none, or its package cannot make it.
    """
    if not isinstance(name, str) or name not in METHODS:
        known = ", ".join(METHODS) or "none is: reinstall distributed_privrl (make dev)"
        raise ConfigError(f"method {reprlib.repr(name)} is not installed: choose one of {known}")
    make = METHODS[name]
    try:
        return make()
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        offered = " ".join(package_of(name) or ("an unknown package",))
        raise ConfigError(f"method {name!r} of {offered} cannot be made: {error}") from error


def parse_config(
    values: Mapping[str, Any], *, source: str, overrides: Sequence[str] = ()
) -> RunConfig:
    """Return the configuration in ``values``, as its method's class.

    Raises:
        ConfigError: an unknown method or key, or a value out of range.
    """
    values = with_overrides(values, overrides)
    if "method" not in values:
        raise ConfigError(f"{source}: 'method' is missing: one of {', '.join(METHODS)}")
    return validate(method_named(values["method"]).config, values, source=source)


def load_config(path: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """Return the configuration in a YAML file.

    Args:
        path: CONFIG.yaml.
        overrides: ``section.key=value``.

    Raises:
        ConfigError: the file is missing or wrong; the message lists each wrong key.
    """
    return parse_config(read_yaml(Path(path)), source=str(path), overrides=overrides)


def plan_run(config: RunConfig, store: DatasetStore | None = None) -> Plan:
    """Return the noise, rounds and cost of a run; opens no data.

    Args:
        config: of the run.
        store: datasets, of which a plan reads the declared spaces, if they are here (default:
            Minari's folder).

    Raises:
        ConfigError: the number of units is not declared, a value is impossible, the bounds file is
            wrong, or GPUs are asked for in vain.
        UnsafeError: delta is not below 1/units.
    """
    from distributed_privrl.stages.planning import plan_declared

    check_gpus(config)
    return plan_declared(method_named(config.method).declare(config), store)


def planned_events(config: RunConfig, store: DatasetStore | None = None) -> tuple[Event, ...]:
    """Return all events that a run may be charged for; see `planning.planned_events`.

    Args:
        config: of the run.
        store: as in `plan_run`.

    Raises:
        ConfigError: as `plan_run`, or they are not known before the run.
        UnsafeError: as `plan_run`.
    """
    from distributed_privrl.stages import planning

    check_gpus(config)
    return planning.planned_events(method_named(config.method).declare(config), store)


def plans_by_units(config: RunConfig, store: DatasetStore | None = None) -> tuple[PlanOfUnits, ...]:
    """Return what a run would be for several numbers of units; see `planning.plans_by_units`.

    Args:
        config: of the run, which declares no number of units.
        store: as in `plan_run`.

    Raises:
        ConfigError: as `check_run`.
        UnsafeError: as `check_run`.
    """
    from distributed_privrl.stages import planning

    check_gpus(config)
    return planning.plans_by_units(method_named(config.method).declare(config), store)


def check_run(config: RunConfig) -> None:
    """Check what `plan_run` does, as far as it is known before units are counted; opens no data.

    Raises:
        ConfigError: settings do not fit together, or GPUs are asked for in vain.
        UnsafeError: no guarantee covers what is asked for.
    """
    from distributed_privrl.stages.planning import check_declared

    check_gpus(config)
    check_declared(method_named(config.method).declare(config))


def check_gpus(config: RunConfig) -> None:
    """Refuse GPUs that would be reserved for workers which compute on CPUs all the same.

    Raises:
        ConfigError: ``runtime.gpus_per_worker`` is above 0 and the method has no use for it.
    """
    gpus, method = config.runtime.gpus_per_worker, method_named(config.method)
    if gpus > 0 and not method.on_gpus:
        why = f", because {method.cpus_because}" if method.cpus_because else ""
        raise ConfigError(
            f"runtime.gpus_per_worker={gpus:g}, but {config.method} computes on CPUs alone{why}:"
            " set it to 0"
        )
