"""What a report says of the policy, the budget and the released prefixes; the experts' returns.

Reference: paper 004, figures 2 and 3.
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
from distributed_privrl.data.spaces import environment_spaces
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Trajectories
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.report import (
    Metric,
    PrivateFigure,
    ReleasedFigure,
    Section,
    write_report,
)
from distributed_privrl.evaluation.returns import evaluate_policy
from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.filter import read_counts
from distributed_privrl.methods.expert.prefix_stage import FILTER
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue
from distributed_privrl.rounds.context import RunContext

FACTS = "expert_facts.json"
PRIVATE_REPORT = "experts"
REFERENCES_KEY = "reference_returns"
EVALUATION_KEY = "evaluation_returns"
"""The same over as many steps as an evaluation has."""
REFERENCES_ARE_PUBLIC = "reference_returns_are_public"
"""What a report of returns of the dataset's metadata assumes: they may be the experts' best."""
_BEST = ("best", "expert")


def write_facts(config: ExpertConfig, context: RunContext, stable: Trajectories | None) -> bool:
    """Keep what the report shows beside the policy: released lengths, and public references.

    Returns:
        whether there are references, so that the release assumes `REFERENCES_ARE_PUBLIC`.
    """
    metadata = context.store.info(config.data.sensitive).metadata
    steps = _episode_steps(config)
    found = [metadata.get(key) for key in (EVALUATION_KEY, REFERENCES_KEY)]
    references = next((known for known in map(_references, found) if _over(known, steps)), {})
    lengths = None if stable is None else stable.lengths.tolist()
    facts = {"lengths": lengths, "references": references}
    write_atomically(context.folder / FACTS, json.dumps(facts))
    return bool(references)


def _episode_steps(config: ExpertConfig) -> int | None:
    """Return the most steps of an evaluation's episode: as asked, else the environment's."""
    asked, environment = config.evaluation.max_steps, config.data.environment
    if asked is not None or environment is None:
        return asked
    made = environment_spaces(environment)[2]
    made.close()  # type: ignore[no-untyped-call]
    return None if made.spec is None else made.spec.max_episode_steps


def _references(found: Any) -> dict[str, float]:
    """Return the public returns of a random and of the best policy, and over how many steps."""
    if not isinstance(found, Mapping):
        return {}
    best = next((found[name] for name in _BEST if name in found), None)
    known = {"random": found.get("random"), "best": best, "steps": found.get("steps")}
    return {name: float(value) for name, value in known.items() if value is not None}


def _over(references: Mapping[str, float], steps: int | None) -> bool:
    """Whether episodes of ``steps`` compare with the references; those without steps always do."""
    return bool(references) and references.get("steps") in (None, steps)


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
        Policy.load(folder / config.output.policy),
        environment,
        episodes=evaluation.episodes,
        seed=Streams(config.seed).child("study").integer("episodes"),
        max_steps=evaluation.max_steps,
    )
    progress("trying the policy", 1, 1)
    return [*results, {"kind": "returns", "returns": list(returns.per_episode)}]


def policy_sections(
    config: ExpertConfig, path: Path, source: str, results: Sequence[Any]
) -> list[Section]:
    """Return the sections on a policy and what paid for it.

    Args:
        config: of the run.
        path: the policy's file.
        source: the ledger entry that paid for it last.
        results: what `study` returned.

    Privacy: post-processing of what was released; no event.
    """
    found = {result["kind"]: result for result in results}
    sections = []
    if "returns" in found:
        sections.append(_returns_section(config, found, source))
    sections.append(_budget_section(config))
    if found.get("facts", {}).get("lengths") is not None:
        entry = source if source.endswith(f"/{FILTER}") else f"{source}/{FILTER}"
        sections.append(_prefix_section(config, found["facts"]["lengths"], entry))
    return sections


def normalised_return(value: float, references: Mapping[str, float]) -> float | None:
    """Return (value - random) / (best - random), where both are known and apart.

    Example:
        >>> normalised_return(30.0, {"random": 10.0, "best": 50.0})
        0.5
    """
    if not {"random", "best"} <= set(references) or references["best"] <= references["random"]:
        return None
    return (value - references["random"]) / (references["best"] - references["random"])


def _returns_section(config: ExpertConfig, found: dict[str, Any], source: str) -> Section:
    returns = [float(value) for value in found["returns"]["returns"]]
    mean, references = float(np.mean(returns)), found["facts"]["references"]
    metrics = [
        Metric(
            name="mean return of the policy",
            value=ReleasedValue(mean, ledger_entry=source),
            explanation=f"{len(returns)} episodes; standard deviation {np.std(returns):.4g}",
        )
    ]
    share = normalised_return(mean, references)
    if share is not None:
        metrics.append(
            Metric(
                name="normalised return",
                value=ReleasedValue(share, ledger_entry=source),
                explanation=f"0: uniform actions ({references['random']:.4g}), 1: the best known"
                f" policy ({references['best']:.4g}), each over as many steps",
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


def _prefix_section(config: ExpertConfig, lengths: Sequence[int], entry: str) -> Section:
    released = np.asarray(lengths, dtype=np.float64)
    metrics = [
        Metric(name="experts drawn", value=PublicValue(config.filter.draws)),
        Metric(name="stable prefixes", value=ReleasedValue(len(released), ledger_entry=entry)),
        Metric(name="released steps", value=ReleasedValue(int(released.sum()), ledger_entry=entry)),
    ]
    figures = []
    if len(released):
        metrics.append(
            Metric(
                name="mean length of a stable prefix",
                value=ReleasedValue(float(released.mean()), ledger_entry=entry),
                explanation=f"shortest {released.min():.0f}, longest {released.max():.0f}",
            )
        )
        image = plots.column_histograms({"prefixes": released[:, None]}, ["steps"])
        figures.append(
            ReleasedFigure(image=image, caption="Length of stable prefixes", ledger_entry=entry)
        )
    return Section(
        title="What the filter released",
        explanation="Prefixes that enough experts would have walked; an empty one is not counted.",
        metrics=metrics,
        figures=figures,
    )
