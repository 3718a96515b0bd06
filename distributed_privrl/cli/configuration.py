"""``config show``, ``validate`` and ``schema``: configurations, without running them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributed_privrl.cli.execution import rllib_trainers
from distributed_privrl.cli.helptext import Overrides, command_group, examples
from distributed_privrl.cli.planning import UNCHECKED

if TYPE_CHECKING:
    from distributed_privrl.core.config import RunConfig

app = command_group(
    "config",
    "Show, validate and describe configurations.",
    "privrl config show stays.yaml",
    "privrl config schema --method privorl_n",
)

ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG.yaml", help="the configuration of a run")
]


@app.command(
    "show",
    epilog=examples(
        "privrl config show stays.yaml --changed",
        "privrl config show stays.yaml -o privacy.epsilon=2",
    ),
)
def show(
    config: ConfigFile,
    overrides: Overrides = None,
    *,
    changed: Annotated[
        bool, typer.Option("--changed", help="only what differs from the defaults")
    ] = False,
) -> None:
    """Show a configuration with every default filled in, as YAML; or what differs from them.

    Either is a configuration of the same run.
    """
    import yaml

    loaded = _load(config, overrides)
    values = loaded.model_dump(mode="json", exclude_defaults=changed)
    typer.echo(yaml.safe_dump({"method": loaded.method, **values}, sort_keys=False), nl=False)


@app.command("validate", epilog=examples("privrl config validate stays.yaml"))
def validate(config: ConfigFile, overrides: Overrides = None) -> None:
    """Check a configuration, what it names, and that a plan can be made of it; opens no data."""
    from distributed_privrl.core.config import NoisyCount
    from distributed_privrl.experiments.names import check_names
    from distributed_privrl.experiments.registry import check_run, plan_run

    loaded = _load(config, overrides)
    if isinstance(loaded.data.units, NoisyCount):
        check_run(loaded)
    else:
        plan_run(loaded)
    check_names(loaded, more_trainers=rllib_trainers())
    typer.echo(f"{config} is a valid configuration of {loaded.method}")
    typer.echo(UNCHECKED, err=True)


@app.command(
    "schema",
    epilog=examples(
        "privrl config schema > schema.json", "privrl config schema --method privorl_n"
    ),
)
def schema(
    method: Annotated[
        str | None, typer.Option(metavar="M", help="of one method (default: of all)")
    ] = None,
) -> None:
    """Write the JSON schema of CONFIG.yaml, for editors."""
    from distributed_privrl.experiments.registry import METHODS, method_named

    names = METHODS if method is None else (method,)
    typer.echo(json.dumps(json_schema([method_named(name).config for name in names]), indent=2))


def json_schema(models: "list[type[RunConfig]]") -> dict[str, Any]:
    """Return the JSON schema of a configuration of one of ``models``.

    Args:
        models: the configuration class of each method.
    """
    from pydantic.json_schema import GenerateJsonSchema, models_json_schema

    references, definitions = models_json_schema([(model, "validation") for model in models])
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "title": "CONFIG.yaml of privrl",
        "oneOf": list(references.values()),
        **definitions,
    }


def _load(config: Path, overrides: list[str] | None) -> "RunConfig":
    from distributed_privrl.experiments.registry import load_config

    return load_config(config, overrides or [])
