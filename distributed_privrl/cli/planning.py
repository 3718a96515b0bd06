"""``plan``: what a run would do and cost, from public facts alone."""

import contextlib
import gc
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributed_privrl.cli.execution import rllib_trainers
from distributed_privrl.cli.helptext import Overrides, examples
from distributed_privrl.cli.plan_text import readable
from distributed_privrl.cli.text import show_table, show_values

if TYPE_CHECKING:
    from distributed_privrl.core.config import RunConfig
    from distributed_privrl.stages.plan import Plan

NOT_PRIVATE = (
    "*** NOT PRIVATE *** privacy.epsilon is null: what this run makes reveals the sensitive rows."
    " Release nothing of it."
)

UNCHECKED = (
    "not checked: the datasets themselves (whether they are here, their rows and units), the"
    " ledger's budget, and the machine; `privrl run` checks them before it draws"
)


def add_to(app: typer.Typer) -> None:
    """Add the verb."""
    app.command(
        "plan",
        epilog=examples(
            "privrl plan stays.yaml",
            "privrl plan stays.yaml -o privacy.epsilon=2 -o training.rounds=5000",
            "privrl plan stays.yaml --json",
            "privrl plan --sweep tune_configs/sweeps/smoke.yaml",
            "privrl plan --sweep tune_configs/sweeps/smoke.yaml --pilot",
        ),
    )(plan)


def plan(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="the run's configuration")],
    overrides: Overrides = None,
    as_json: Annotated[bool, typer.Option("--json", help="write JSON")] = False,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="it is a sweep's: as `privrl sweep --dry-run`")
    ] = False,
    pilot: Annotated[
        bool,
        typer.Option(
            "--pilot",
            help="with --sweep: measure the minutes of a trial and its agents, by short ones on"
            " public rows",
        ),
    ] = False,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="with --pilot: a dataset declared public (default: selection.stand_in)",
        ),
    ] = None,
) -> None:
    """Show noise, epsilon, rounds and cost of a run; opens no data.

    It reads the configuration, a bounds file and, where the dataset is here, the spaces that it
    declares: public facts, and no row. Where the number of units is not declared, it shows what
    100 to 1,000,000 of them would mean. With --pilot it runs short trials on public rows. Noise and
    epsilon are those of a coarse grid: a run's are a little lower, never higher.
    """
    from distributed_privrl.core.errors import ConfigError

    if (pilot and not sweep) or (rows is not None and not pilot):
        raise ConfigError("--pilot goes with --sweep, and --rows with --pilot")
    if sweep:
        from distributed_privrl.cli.sweeping import piloted, show_cost
        from distributed_privrl.experiments.sweeps.config import load_sweep

        asked = load_sweep(config, overrides or [])
        show_cost(asked, as_json=as_json, pilot=piloted(asked, rows) if pilot else None)
        return
    with _uncollected():
        _show(config, overrides or [], as_json=as_json)


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Leave garbage alone: a tenth of a plan's time would go by in search of it among modules."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def _show(config: Path, overrides: Sequence[str], *, as_json: bool) -> None:
    """Show the plan of a run, or of several numbers of units."""
    from distributed_privrl.experiments.names import check_names
    from distributed_privrl.experiments.registry import load_config, plan_run
    from distributed_privrl.privacy.accounting import coarse_figures

    loaded = load_config(config, overrides)
    with coarse_figures():
        if not isinstance(loaded.data.units, int):
            _show_by_units(loaded, as_json=as_json)
            return
        facts = plan_facts(loaded, plan_run(loaded))
    check_names(loaded, more_trainers=rllib_trainers())
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    show_values(readable(facts))
    typer.echo(UNCHECKED, err=True)
    if not facts["private"]:
        typer.echo(NOT_PRIVATE, err=True)


def _show_by_units(config: "RunConfig", *, as_json: bool) -> None:
    """Show what several numbers of units would mean, where none is declared."""
    from distributed_privrl.core.config import NoisyCount
    from distributed_privrl.experiments.advice import advised_method, columns_to_tell
    from distributed_privrl.experiments.names import check_names
    from distributed_privrl.experiments.registry import plans_by_units

    found = plans_by_units(config)
    check_names(config, more_trainers=rllib_trainers())
    advice = advised_method(config)
    plans = [one.plan for one in found if one.plan is not None]
    lacking = None
    if plans:
        assumed = "columns_assumed" in plans[0].facts()
        lacking = columns_to_tell(config, plans[0], assumed=assumed)
    if as_json:
        rows = [
            {
                "units": one.units,
                "verdict": None
                if one.plan is None or one.plan.verdict is None
                else one.plan.verdict.facts(),
                "refused": one.refused or None,
            }
            for one in found
        ]
        facts = {"method": config.method, "units": None, "by_units": rows}
        facts |= {} if lacking is None else {"columns_unknown": lacking}
        typer.echo(json.dumps(facts | _advice_facts(config), indent=2))
        return
    verdicts = [None if one.plan is None else one.plan.verdict for one in found]
    names = list(dict.fromkeys(name for one in verdicts if one for name in one.figures))
    rows_shown = []
    for one, verdict in zip(found, verdicts, strict=True):
        figures = {} if verdict is None else verdict.figures
        shown = [f"{figures[name]:,.3g}" if name in figures else "-" for name in names]
        grade = f"refused: {one.refused}" if verdict is None and one.refused else "unknown"
        rows_shown.append(
            (f"{one.units:,}", *shown, grade if verdict is None else str(verdict.grade))
        )
    show_table(("units", *(name.replace("_", " ") for name in names), "verdict"), rows_shown)
    if lacking is not None:
        typer.echo(f"\ncolumns: {lacking}")
    if advice is not None:
        typer.echo(f"\ntake {advice}")
    counted = isinstance(config.data.units, NoisyCount)
    first = (
        "data.units is to be counted with noise, so nothing is known before the run"
        if counted
        else "data.units is not declared: give it if it is public, or {epsilon: 0.1} to count it"
        " with noise"
    )
    typer.echo(f"{first}; for one number: -o data.units=N. {UNCHECKED}", err=True)


def _advice_facts(config: "RunConfig") -> dict[str, Any]:
    from distributed_privrl.experiments.advice import advised_method

    advice = advised_method(config)
    return {} if advice is None else {"advice": advice.facts()}


def plan_facts(config: "RunConfig", plan: "Plan") -> dict[str, Any]:
    """Return what ``plan --json`` writes; public facts only.

    Args:
        config: of the run.
        plan: its plan.
    """
    from distributed_privrl.core.config import NoisyBounds
    from distributed_privrl.experiments.advice import columns_to_tell
    from distributed_privrl.experiments.registry import method_named
    from distributed_privrl.experiments.speeds import stored_speeds, time_of
    from distributed_privrl.privacy.ledger.records import budget_line
    from distributed_privrl.privacy.units import Relation
    from distributed_privrl.stages.asked_measures import noise_of_measures

    privacy = config.privacy
    facts: dict[str, Any] = {
        "method": config.method,
        "private": plan.budget is not None,
        "sensitive": config.data.sensitive,
        "public": list(config.data.public),
        "unit": config.data.unit,
        "units": plan.units.value,
        "rounds": plan.rounds,
        "spare_rounds": plan.max_rounds - plan.rounds,
        "block_rounds": plan.block_rounds,
        **plan.facts(),
        "output": config.output.model_dump(mode="json"),
        "files": _files(config),
        "counted": config.output.COUNTED,
    }
    if (noise := noise_of_measures(config)) is not None:
        facts["measures"] = {"noise_units": noise, "noise_share": noise / plan.units.value}
    if plan.effort is not None:
        facts["time"] = time_of(config, plan.effort, stored_speeds()).facts()
    if plan.verdict is not None:
        facts["verdict"] = plan.verdict.facts()
    assumed = "columns_assumed" in facts
    if (lacking := columns_to_tell(config, plan, assumed=assumed)) is not None:
        facts["columns_unknown"] = lacking
    facts |= _advice_facts(config)
    if plan.budget is None or privacy.epsilon is None:
        return facts
    if isinstance(config.data.bounds, NoisyBounds):
        facts["bounds"] = config.data.bounds.model_dump(mode="json")
    return facts | {
        "relation": privacy.relation,
        "accountant": plan.accountant,
        "delta": privacy.delta,
        "charged_before": method_named(config.method).declare(config).charged_before,
        "epsilon": plan.epsilon(plan.rounds, certified=True),
        "epsilon_with_spare": plan.epsilon(plan.max_rounds, certified=True),
        "epsilon_limit": privacy.epsilon,
        "budget_command": budget_line(
            config.data.sensitive,
            config.data.unit,
            Relation(privacy.relation),
            (privacy.epsilon, privacy.delta),
        ),
    }


def _files(config: "RunConfig") -> list[str]:
    """Return the files that a run writes into its folder for whoever uses its policy."""
    from distributed_privrl.core.config import OutputConfig

    if isinstance(config.output, OutputConfig):
        return []
    folder = "private/" if config.privacy.epsilon is None else ""
    return [f"{folder}{name}" for name in config.output.files]


def summary_line(config: "RunConfig", plan: "Plan | None") -> str:
    """Return the plan in one line, for the start of a run.

    Args:
        config: of the run.
        plan: its plan; None while the number of units is to be counted with noise.
    """
    privacy = config.privacy
    guarantee = (
        "no privacy"
        if privacy.epsilon is None
        else f"epsilon at most {privacy.epsilon:g} at delta {privacy.delta:g}"
        f" ({privacy.relation}, {privacy.accountant})"
    )
    if plan is None:
        return f"plan: units ({config.data.unit}) are counted with noise first; {guarantee}"
    spare = plan.max_rounds - plan.rounds
    return (
        f"plan: {plan.rounds} rounds (+{spare} spare) over {plan.units.value} units"
        f" ({config.data.unit}), {plan.summary()}; {guarantee}"
    )
