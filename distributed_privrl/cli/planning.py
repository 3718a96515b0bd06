"""``plan``: what a run would do and cost, from public facts alone."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from distributed_privrl.cli.execution import rllib_trainers
from distributed_privrl.cli.helptext import Overrides, examples
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
    from distributed_privrl.experiments.names import check_names
    from distributed_privrl.experiments.registry import load_config, plan_run
    from distributed_privrl.privacy.accounting import coarse_figures

    if (pilot and not sweep) or (rows is not None and not pilot):
        raise ConfigError("--pilot goes with --sweep, and --rows with --pilot")
    if sweep:
        from distributed_privrl.cli.sweeping import piloted, show_cost
        from distributed_privrl.experiments.sweeps.config import load_sweep

        asked = load_sweep(config, overrides or [])
        show_cost(asked, as_json=as_json, pilot=piloted(asked, rows) if pilot else None)
        return
    loaded = load_config(config, overrides or [])
    with coarse_figures():
        if not isinstance(loaded.data.units, int):
            _show_by_units(loaded, as_json=as_json)
            return
        facts = plan_facts(loaded, plan_run(loaded))
    check_names(loaded, more_trainers=rllib_trainers())
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    show_values(_readable(facts))
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


def _alone(facts: dict[str, Any]) -> str:
    """Say of rows whose unit has several that none tells whose it is."""
    from distributed_privrl.data.trajectories import TRANSITION

    if facts["counted"] != "rows" or facts["unit"] == TRANSITION:
        return ""
    return f", each on its own: none tells which belong to the same {facts['unit']}"


def _readable(facts: dict[str, Any]) -> dict[str, str]:
    from distributed_privrl.privacy.units import unit_in_words
    from distributed_privrl.stages.verdict import Grade, Verdict

    public = ", ".join(facts["public"]) or "none"
    output = facts["output"]
    lines = {
        "method": facts["method"],
        "data": f"{facts['sensitive']} (public: {public})",
        "units": f"{facts['units']:,} (each {unit_in_words(facts['unit'])})",
        "rounds": f"{facts['rounds']} + {facts['spare_rounds']} spare, reserved"
        f" {facts['block_rounds']} at a time",
        **_work(facts),
        "output": f"{output['dataset']} ({output['size']} {facts['counted']}{_alone(facts)})"
        if facts["counted"] is not None
        else ", ".join(filter(None, (*facts["files"], output.get("dataset")))),
    }
    if "columns_unknown" in facts:
        lines["columns"] = facts["columns_unknown"]
    if "time" in facts:
        lines["time"] = _time(facts["time"])
    if not facts["private"]:
        return lines | {"guarantee": "none"}
    if "bounds" in facts:
        low, high = facts["bounds"]["quantiles"]
        lines["bounds"] = (
            f"epsilon {facts['bounds']['epsilon']:g} before the rounds, for quantiles {low:g} and"
            f" {high:g} of {', '.join(facts['bounds']['parts'])}"
        )
    if "measures" in facts:
        noise, share = facts["measures"]["noise_units"], facts["measures"]["noise_share"]
        lines["measures"] = (
            f"noise of {noise:.3g} units a count, {share:.2%} of all: what is rarer is not seen"
        )
    charged = [
        f", {cost:g} for the {name} included" for name, cost in facts["charged_before"].items()
    ]
    if "verdict" in facts:
        lines["verdict"] = str(Verdict(**facts["verdict"]))
        if facts["verdict"]["grade"] != Grade.FINE and "advice" in facts:
            lines["take"] = _advised(facts)
    return lines | {
        "epsilon": f"{facts['epsilon']:.4f} after {facts['rounds']} rounds,"
        f" {facts['epsilon_with_spare']:.4f} if all spare ones are needed,"
        f" {facts['epsilon_limit']:g} is held meanwhile{''.join(charged)}",
        "guarantee": f"delta {facts['delta']:g}, {facts['relation']}, accountant"
        f" {facts['accountant']}",
        "budget": facts["budget_command"],
    }


def _time(facts: dict[str, Any]) -> str:
    """Return minutes and memory in a line."""
    low, high = facts["minutes_between"]
    said = f"some {low:g} to {high:g} minutes, {facts['gigabytes']:g} GB of memory"
    if facts["measured"]:
        return f"{said}, by what was measured on {facts['machine']}"
    return f"{said} on {facts['machine']}; `privrl doctor --measure` measures this machine"


def _advised(facts: dict[str, Any]) -> str:
    """Return which method to take, in a line; this one may be it."""
    advice = facts["advice"]
    if advice["method"] == facts["method"]:
        return f"{facts['method']}, as you do: {advice['reason']}"
    return f"{advice['method']}: {advice['reason']}; {', against '.join(advice['measured'])}"


def _work(facts: dict[str, Any]) -> dict[str, str]:
    """Return the lines on what a round does: private rounds, or noisy statistics."""
    if "unit_gradients" not in facts:
        said = {"noise": facts.get("noise"), "resolution": facts.get("resolution")}
        return {name: text for name, text in said.items() if text is not None}
    batch, share = facts["expected_batch_size"], facts.get("curiosity_rate", 0.0)
    samples = f", and {round(share * batch)} samples of the model" if share else ""
    lines = {
        "batch": f"{round((1 - share) * batch)} units on average, each with probability"
        f" {facts['sampling_probability']:.4g}{samples}",
        "cost": f"{facts['unit_gradients']:.3g} gradients of units",
    }
    if "filter" in facts:
        part = facts["filter"]
        lines["filter"] = (
            f"{part['draws']} + {part['spare_draws']} spare draws for epsilon"
            f" {part['epsilon']:g}, delta {part['delta']:g}: {part['noise']}"
        )
    if "marginals" in facts:
        part = facts["marginals"]
        cost = f", for epsilon {part['epsilon']:g}, delta {part['delta']:g}" * ("epsilon" in part)
        drawn = ", ".join(f"{part[one]} {one}" for one in ("rows", "trajectories") if one in part)
        lines["marginals"] = f"before the rounds{cost}: {drawn} of them are learned"
        if "columns_assumed" in part:
            lines["marginals"] += f" (for an assumed table of {part['columns_assumed']} columns)"
    if "noise_multiplier" in facts:
        noise = f"multiplier {facts['noise_multiplier']:.4g} (clip norm {facts['clip_norm']:g})"
        if "round_noise" in facts:
            noise += f", {facts['round_noise']:.3g} clip norms a round"
        lines["noise"] = noise
    if "weights" in facts:
        lines["weights"] = f"about {facts['weights']:,} are learned in private rounds"
    return lines
