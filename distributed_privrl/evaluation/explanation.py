"""What a certificate says, in sentences for somebody who has never seen one."""

import math
from collections.abc import Mapping
from typing import Any

from distributed_privrl.privacy.units import unit_in_words

DECLARED_PUBLIC = "declared public"
"""Status of a report on a dataset that needs no certificate."""

_LARGEST_EXPONENT = 700
_LEFT_OUT = "any one {unit} been left out"
_CHANGES = {
    "replace_one": "any one {unit} been exchanged for any other",
    "policy_level": "any one {unit}'s policy been left out (the policies are protected, not the"
    " episodes that they produced)",
}


def explain(certificate: Mapping[str, Any]) -> list[str]:
    """Return what the certificate's epsilon and delta mean, in sentences for a newcomer."""
    status, epsilon, delta = (certificate.get(key) for key in ("status", "epsilon", "delta"))
    if status == DECLARED_PUBLIC:
        return [
            "Who made this dataset declared its rows public: it needs no certificate, and no"
            " privacy is claimed for anybody in it."
        ]
    if status == "non_private":
        return [
            "This run was trained without privacy. Nothing bounds what its outputs say about a"
            " single record: treat them like the sensitive data themselves."
        ]
    if status != "valid" or epsilon is None or delta is None:
        return [
            "This certificate is not valid: the run makes no privacy claim, and its outputs must"
            " not be released."
        ]
    stages = certificate.get("stages", ())
    units = sorted({str(stage.get("unit")) for stage in stages})
    unit = " or ".join(map(unit_in_words, units)) or "unit"
    changes = sorted({_CHANGES.get(str(stage.get("relation")), _LEFT_OUT) for stage in stages})
    change = " or ".join(changes or [_LEFT_OUT]).format(unit=unit)
    posterior = _percent_rounded_up(1 / (1 + math.exp(-epsilon)))
    factor = f" (about {math.exp(epsilon):,.4g})" if epsilon < _LARGEST_EXPONENT else ""
    return [
        f"The privacy unit is one {unit}: all that belongs to it is what the guarantee protects,"
        " whole.",
        f"Had {change}, no result that anybody can compute from the outputs would have changed its"
        f" probability by more than a factor e^epsilon{factor}, apart from results of total"
        f" probability delta = {delta:.3g}.",
        "As a bet: someone who thought it a coin toss whether that was the case can be at most"
        f" {posterior} sure after seeing the outputs, whatever else they know (delta aside).",
        "This is the worst case over all data and all attackers; it holds for ever and for any"
        " later use of the outputs. Smaller is stronger: epsilon around 1 is a strong guarantee,"
        " around 10 a weak one in the worst case.",
        f"Whoever is in several of these units, and people who stand together, such as a family,"
        f" are protected less: what holds for one {unit} at epsilon holds for k of them at k times"
        " epsilon, with a larger delta.",
        "It says nothing about what the outputs are good for. That is told by measures against the"
        " real data, which are not public.",
    ]


def _percent_rounded_up(share: float) -> str:
    return f"{math.ceil(share * 100_000) / 1000:.3f} %"


def explain_stages(certificate: Mapping[str, Any]) -> list[str]:
    """Return what each stage of a certificate released of the sensitive data, in a sentence.

    Args:
        certificate: content of ``certificate.json``.
    """
    return [_stage_in_words(stage) for stage in certificate.get("stages", ())]


def _stage_in_words(stage: Mapping[str, Any]) -> str:
    unit = unit_in_words(str(stage.get("unit")))
    source = {"declared": "a number declared public", "dp": "a number found with noise"}
    how = source.get(str(stage.get("units_source")), "")
    of = f"{stage.get('units')} units, {how}" if how else f"{stage.get('units')} units"
    events = "; ".join(_event_in_words(event, unit) for event in stage.get("events", ()))
    return (
        f"{stage.get('name')} read {stage.get('dataset')} ({of}) and released"
        f" {events or 'nothing'}."
    )


def _event_in_words(event: Mapping[str, Any], unit: str) -> str:
    """Return what an event released; every kind of `privacy.events` has its words."""
    kind, count = event.get("kind"), event.get("count", 1)
    answers = f"{count:,} noisy answer{'s' if count > 1 else ''}"
    noise = event.get("noise_multiplier")
    one = f"what one {unit} can change"
    if kind == "poisson_gaussian":
        return (
            f"{count:,} noisy sums, in each of which a {unit} took part with probability"
            f" {event['sampling_probability']:.3g}, limited to a fixed length, under Gaussian noise"
            f" {noise:.3g} times that length"
        )
    if kind in ("gaussian", "discrete_gaussian"):
        return f"{answers} under Gaussian noise {noise:.3g} times {one}"
    if kind == "laplace":
        return f"{answers} under Laplace noise {noise:.3g} times {one}"
    if kind == "discrete_laplace":
        times = 1 / (event["parameter"] * event["sensitivity"])
        return f"{answers} under Laplace noise {times:.3g} times {one}"
    if kind == "bounded_range":
        return f"{count:,} choice{'s' if count > 1 else ''} between public candidates, by chance"
    if kind == "pure_dp":
        return f"{answers} of epsilon {event['epsilon']:.3g} at most each"
    if kind == "approximate_dp":
        return f"{answers} of epsilon {event['epsilon']:.3g} and delta {event['delta']:.3g} each"
    if kind == "parallel":
        each = " or ".join(
            ", ".join(_event_in_words(part, unit) for part in branch)
            for branch in event["branches"]
        )
        return f"from parts that share no {unit}: {each}"
    if kind == "repeat_and_select":
        return "the best of a random number of trials, which stays hidden, by a noisy score"
    return f"{answers} of kind {kind}"
