"""A plan as lines of text."""

from typing import Any


def readable(facts: dict[str, Any]) -> dict[str, str | list[str]]:
    """Return the line of a plan, or the lines, by their names.

    Args:
        facts: as ``planning.plan_facts`` returns them.
    """
    from distributed_privrl.privacy.units import unit_in_words
    from distributed_privrl.stages.verdict import Verdict

    public = ", ".join(facts["public"]) or "none"
    output = facts["output"]
    lines: dict[str, str | list[str]] = {
        "method": facts["method"],
        "data": f"{facts['sensitive']} (public: {public})",
        "units": f"{facts['units']:,} (each {unit_in_words(facts['unit'])})",
        "rounds": f"{facts['rounds']} + {facts['spare_rounds']} spare{_blocks(facts)}",
        **_work(facts),
        "output": f"{output['dataset']} ({output['size']} {facts['counted']}{_alone(facts)})"
        if facts["counted"] is not None
        else ", ".join(filter(None, (*facts["files"], output.get("dataset")))),
    }
    if "columns_unknown" in facts:
        lines["columns"] = facts["columns_unknown"]
    if "no_single_values" in facts:
        found = "; ".join(facts["no_single_values"])
        lines["values"] = f"spread over ranges, none comes back by itself: {found} (a wider step?)"
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
        lines["verdict"] = Verdict(**facts["verdict"]).clauses()
        if "advice" in facts:
            lines["take"] = _advised(facts)
    return lines | {
        "epsilon": f"{facts['epsilon']:.4f} after {facts['rounds']} rounds,"
        f" {facts['epsilon_with_spare']:.4f} if all spare ones are needed,"
        f" {facts['epsilon_limit']:g} is held meanwhile{''.join(charged)}",
        "guarantee": f"delta {facts['delta']:g}, {facts['relation']}, accountant"
        f" {facts['accountant']}",
        "budget": facts["budget_command"],
    }


def _alone(facts: dict[str, Any]) -> str:
    """Say of rows whose unit has several that none tells whose it is."""
    from distributed_privrl.data.trajectories import TRANSITION

    if facts["counted"] != "rows" or facts["unit"] == TRANSITION:
        return ""
    return f", each on its own: none tells which belong to the same {facts['unit']}"


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


def _blocks(facts: dict[str, Any]) -> str:
    """Return how many rounds are reserved at once; empty: queries reserve what each costs."""
    whole = facts["block_rounds"] >= facts["rounds"] + facts["spare_rounds"] > 1
    return "" if whole else f", reserved {facts['block_rounds']} at a time"
