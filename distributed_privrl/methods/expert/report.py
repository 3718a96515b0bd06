"""What a report says of the policy, the budget and the released prefixes; the experts' returns.

Reference: Expert-level DP, figures 2 and 3.
"""

import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.files import storage_errors, write_atomically
from distributed_privrl.core.progress import Progress
from distributed_privrl.core.random import Streams
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.environments.references import REFERENCE_RETURNS, reference_returns
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.figures import PrivateFigure
from distributed_privrl.evaluation.report import Metric, Section, write_report
from distributed_privrl.evaluation.returns import evaluate_policy
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.expert.config import ExpertConfig, ReturnRange
from distributed_privrl.methods.expert.filter import read_counts
from distributed_privrl.privacy.metrics import Answer, PublicValue, metrics_record
from distributed_privrl.stages.context import RunContext

FACTS = "expert_facts.json"
PRIVATE_REPORT = "experts"


def write_facts(folder: Path, stable: Answer[Trajectories] | None) -> None:
    """Keep the lengths of the released prefixes, which the report shows beside the policy.

    Args:
        folder: of the checkpoint.
        stable: what the filter released, None where there is none.

    Privacy: post-processing of the release; no event.
    """
    lengths = PublicValue(None) if stable is None else stable.map(_lengths)
    write_atomically(folder / FACTS, json.dumps(metrics_record(lengths=lengths)))


def _lengths(stable: Trajectories) -> tuple[int, ...]:
    return tuple(stable.lengths.tolist())


def write_private_report(
    config: ExpertConfig, context: RunContext, *, threshold: float | None
) -> None:
    """Write the experts' returns, and raw counts against the threshold, to ``private/``.

    No row's number ends a run whose draws are paid for, or shows on its screen: a report that
    fails is left out.

    Privacy: computed from rows and policies without noise; NOT FOR RELEASE, no certificate covers
    it.
    """
    if context.make_private is None:
        return
    folder = context.make_private()
    with warnings.catch_warnings(), np.errstate(all="ignore"), suppress(Exception):
        warnings.simplefilter("ignore")
        _write_private(config, context, folder, threshold)


def _write_private(
    config: ExpertConfig, context: RunContext, folder: Path, threshold: float | None
) -> None:
    returns = expert_returns(context.store, config.data.sensitive, config.data.unit)
    write_report(
        folder / f"{PRIVATE_REPORT}.html",
        folder / f"{PRIVATE_REPORT}.json",
        title=f"The experts of {config.data.sensitive}",
        certificate={},
        sections=[_experts_section(returns), *_counts_sections(folder, threshold)],
        audience="private",
    )


def _experts_section(returns: NDArray[np.float64]) -> Section:
    if not len(returns):
        return Section(title="What the experts earn", explanation="No return is a number.")
    return Section(
        title="What the experts earn",
        explanation="The mean return of each expert's recorded trajectories.",
        metrics=[
            Metric(name="experts with trajectories", value=len(returns)),
            Metric(name="mean", value=float(returns.mean())),
            Metric(name="lowest", value=float(returns.min())),
            Metric(name="highest", value=float(returns.max())),
        ],
        figures=[
            PrivateFigure(
                image=plots.column_histograms({"experts": returns[:, None]}, ["mean return"]),
                caption="Mean return of each expert",
            )
        ],
    )


def _counts_sections(folder: Path, threshold: float | None) -> list[Section]:
    """Return the section on raw counts, where there are any."""
    counts = read_counts(folder)
    if threshold is None or not counts:
        return []
    by_step: dict[float, list[float]] = {}
    for values, _ in counts.values():
        for step, value in enumerate(values.tolist()):
            by_step.setdefault(float(step + 1), []).append(value)
    image = plots.lines_with_spread(
        {"experts that would have taken a prefix": by_step},
        xlabel="steps of the prefix",
        ylabel="experts",
        levels={"threshold, without its noise": threshold},
    )
    return [
        Section(
            title="Counts against the threshold",
            explanation="Mean and range over the draws; raw counts.",
            metrics=[
                Metric(name="threshold", value=threshold),
                Metric(name="draws with an expert", value=len(counts)),
            ],
            figures=[PrivateFigure(image=image, caption="Count of each prefix by its length")],
        )
    ]


def expert_returns(store: DatasetStore, dataset: str, unit: str) -> NDArray[np.float64]:
    """Return the experts' finite mean returns over their trajectories, ``(E,)``: private."""
    sums: dict[int, list[float]] = {}
    for chunk in store.iter_trajectories(dataset, unit=unit):
        owner = np.repeat(np.arange(len(chunk)), chunk.lengths)
        earned = np.bincount(owner, weights=chunk.rewards, minlength=len(chunk))
        for expert, value in zip(chunk.unit_ids.tolist(), earned.tolist(), strict=True):
            sums.setdefault(expert, []).append(value)
    means = np.array([sum(values) / len(values) for values in sums.values()], np.float64)
    finite: NDArray[np.float64] = means[np.isfinite(means)]
    return finite


def study(config: ExpertConfig, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Return what the policy earns in ``data.environment``, and what was released beside it.

    Args:
        config: of the run.
        folder: of the policy.
        progress: told where it is.

    Privacy: the released policy in a public simulator, released lengths: no event, no real row.
    """
    path = folder / "checkpoint" / FACTS
    with storage_errors(f"read {path}"):
        results: list[dict[str, Any]] = [{"kind": "facts", **json.loads(path.read_text())}]
    environment, evaluation = config.data.environment, config.evaluation
    if environment is None or not evaluation.episodes:
        return results
    progress("trying the policy", 0, 1)
    returns = evaluate_policy(
        Policy.load(folder / config.output.policy, finite=False),
        environment,
        episodes=evaluation.episodes,
        seed=Streams(config.seed).child("study").integer("episodes"),
        max_steps=evaluation.max_steps,
    )
    progress("trying the policy", 1, 1)
    return [*results, {"kind": "returns", "returns": list(returns.per_episode)}]


def policy_sections(
    config: ExpertConfig, path: Sourced[Path], results: Sourced[Sequence[Any]]
) -> list[Section]:
    """Return the sections on a policy and what paid for it.

    Args:
        config: of the run.
        path: the policy's file.
        results: what `study` returned.

    Privacy: post-processing of what was released; no event.
    """
    found = results.then(lambda every: {result["kind"]: result for result in every})
    sections = []
    if "returns" in found.content:
        sections.append(_returns_section(config, found.then(_returns)))
    sections.append(_budget_section(config))
    facts = found.content.get("facts", {})
    if facts.get("lengths") is not None:
        lengths = found.then(lambda kinds: np.asarray(kinds["facts"]["lengths"], np.float64))
        sections.append(_prefix_section(config, lengths.paid_by(facts["lengths_ledger_entry"])))
    return sections


def _returns(found: Mapping[str, Any]) -> list[float]:
    return [float(value) for value in found["returns"]["returns"]]


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def references_of(config: ExpertConfig) -> tuple[ReturnRange, str] | None:
    """Return the returns that count as 0 and 1, and in words whose they are; None: nobody says.

    They are those that the configuration declares, or those that the environment is registered
    with, over its own time limit. What a sensitive dataset says of returns is never among them.

    Args:
        config: of the run.
    """
    evaluation, environment = config.evaluation, config.data.environment
    if evaluation.reference_returns is not None:
        return evaluation.reference_returns, "as declared in evaluation.reference_returns"
    if environment is None or evaluation.max_steps is not None:
        return None
    if environment not in REFERENCE_RETURNS:
        return None
    known = reference_returns(environment)
    return ReturnRange(low=known.random, high=known.planner), "of uniform actions and a planner"


def _returns_section(config: ExpertConfig, returns: Sourced[list[float]]) -> Section:
    metrics = [
        Metric(
            name="mean return of the policy",
            value=returns.value(_mean),
            explanation=f"{len(returns.content)} episodes; standard deviation"
            f" {np.std(returns.content):.4g}",
        )
    ]
    if (found := references_of(config)) is not None:
        references, whose = found
        metrics.append(
            Metric(
                name="normalised return",
                value=returns.value(lambda values: references.share_of(_mean(values))),
                explanation=f"0: {references.low:.4g}, 1: {references.high:.4g}, {whose}",
            )
        )
    for name, baseline in config.evaluation.baselines.items():
        metrics.append(
            Metric(
                name=f"return of {name}, for comparison",
                value=PublicValue(baseline),
                explanation="as given in evaluation.baselines",
            )
        )
    return Section(
        title=f"What the policy earns in {config.data.environment}",
        explanation="The policy of the last step, never the best one, in a public simulator.",
        metrics=metrics,
    )


def _budget_section(config: ExpertConfig) -> Section:
    epsilon, delta, share = config.privacy.epsilon, config.privacy.delta, config.filter_share
    if epsilon is None:
        return Section(title="Budget", explanation="Without privacy: there is none.")
    delta_share = {0.0: 0.0, 1.0: 1.0}.get(share, config.filter.delta_share)
    rows = {
        "epsilon of the stable prefixes": share * epsilon,
        "epsilon of the private rounds": (1 - share) * epsilon,
        "delta of the stable prefixes": delta_share * delta,
        "delta of the private rounds": (1 - delta_share) * delta,
    }
    return Section(
        title="How the budget is split",
        explanation="Upper bounds, from the configuration; the certificate states what was spent.",
        metrics=[
            Metric(name=name, value=PublicValue(float(f"{value:.6g}")))
            for name, value in rows.items()
        ],
    )


def _prefix_section(config: ExpertConfig, lengths: Sourced[NDArray[np.float64]]) -> Section:
    released = lengths.content
    metrics = [
        Metric(name="experts drawn", value=PublicValue(config.filter.draws)),
        Metric(name="stable prefixes", value=lengths.value(len)),
        Metric(name="released steps", value=lengths.value(lambda some: int(some.sum()))),
    ]
    figures = []
    if len(released):
        metrics.append(
            Metric(
                name="mean length of a stable prefix",
                value=lengths.value(lambda some: float(some.mean())),
                explanation=f"shortest {released.min():.0f}, longest {released.max():.0f}",
            )
        )
        figures.append(
            lengths.figure(
                lambda some: plots.column_histograms({"prefixes": some[:, None]}, ["steps"]),
                "Length of stable prefixes",
            )
        )
    return Section(
        title="What the filter released",
        explanation="Prefixes that enough experts would have walked; an empty one is not counted.",
        metrics=metrics,
        figures=figures,
    )
