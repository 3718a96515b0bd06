"""What a report says of how steps of synthetic trajectories drift away from what was counted."""

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.evaluation.report import Metric
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.counted_section import column_in_words

DRIFTS = 0.1
"""Share of all steps that lies elsewhere than counted, beyond chance, from which it is told."""
_NAMED = 5
"""Columns that are named at most."""

Drift = Mapping[str, Any]
"""`marginals.drift.Drift.facts`; empty where the method or its version tells nothing."""


def drifting_columns(drift: Drift, info: DatasetInfo) -> dict[str, float]:
    """Return the share of steps that lies elsewhere than counted, by column, the largest first.

    Args:
        drift: of a release.
        info: of the release, whose columns have the names that their owner gave them.
    """
    missed = {
        name: found["missed"]
        for name, found in drift.get("columns", {}).items()
        if _excess(found) > DRIFTS
    }
    ordered = sorted(missed, key=missed.__getitem__, reverse=True)
    return {column_in_words(name, info): missed[name] for name in ordered}


def _excess(found: Mapping[str, float]) -> float:
    """Return how much more of a column is missed than by chance."""
    return found["missed"] - found["by_chance"]


def drift_verdict(drift: Drift, info: DatasetInfo) -> str:
    """Return what is to be said of trajectories that drift; else nothing."""
    found = drifting_columns(drift, info)
    if not found:
        return ""
    named = ", ".join(f"{name} ({share:.0%})" for name, share in list(found.items())[:_NAMED])
    more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
    return (
        f" STEPS DRIFT: trajectories leave what was counted, in {named}{more}: that share of all"
        " steps lies where the counts do not have it. Too little was counted of how a step leads to"
        " the next one, or noise has left too little of it. Another run, of other people or for"
        " more of their budget, keeps more with columns that are declared lasting, with fewer"
        " columns, or with more of epsilon; method marginals does, if rows that stand alone are"
        " enough."
    )


def drift_metrics(drift: Sourced[Drift], info: DatasetInfo) -> list[Metric]:
    """Return the largest miss beside chance, and those that are told of."""
    if not drift.content.get("columns"):
        return []

    name = max(drift.content["columns"], key=lambda one: _excess(drift.content["columns"][one]))
    metrics = [
        Metric(
            name="largest drift",
            value=drift.value(lambda found: float(found["columns"][name]["missed"])),
            explanation=f"of {column_in_words(name, info)}: the share of all steps that lies in"
            " other parts of it than the model of a step has it, which was made from the counts"
            f" alone. Chance would miss {drift.content['columns'][name]['by_chance']:.2g}",
        )
    ]
    told = drift.then(lambda found: drifting_columns(found, info))
    for name in list(told.content)[:_NAMED]:
        metrics.append(Metric(name=f"drift of {name}", value=told.value(itemgetter(name))))
    return metrics
