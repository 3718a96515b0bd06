"""What a report says of a learned policy: its values, and what they are in a known problem."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distributed_privrl.core.progress import Progress
from distributed_privrl.environments import tabular_problem
from distributed_privrl.environments.tabular import TabularMdp
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.figures import PublicFigure
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.methods.value_iteration.config import ApviConfig, VapviConfig
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from distributed_privrl.methods.value_iteration.resolution import (
    linear_resolution,
    tabular_resolution,
)
from distributed_privrl.methods.value_iteration.study import (
    exact_value,
    reference_values,
    run_study,
)
from distributed_privrl.privacy.metrics import PublicValue

Config = ApviConfig | VapviConfig
NAMES = {
    "optimal": "best policy there is",
    "behaviour": "policy that collected the data",
    "uniform": "actions at random",
}


def study(config: Config, folder: Path, progress: Progress) -> list[dict[str, Any]]:
    """Return the simulated cells that ``evaluation`` asks for; none in an unknown environment.

    Args:
        config: of the run.
        folder: of the policy, which these simulations do not need.
        progress: told where it is.
    """
    problem = _problem(config)
    if problem is None or not config.evaluation.study_units:
        return []
    return run_study(config, problem, progress=progress)


def policy_sections(
    config: Config, path: Sourced[Path], results: Sourced[Sequence[Any]]
) -> list[Section]:
    """Return the sections on a policy.

    Args:
        config: of the run.
        path: the policy's file.
        results: what `study` returned, which did not look at the policy.

    Privacy: post-processing of the released policy in a public problem; no event.
    """
    policy = path.then(GreedyPolicy.load)
    sections = [_value_section(config, policy)]
    problem = _problem(config)
    if problem is not None:
        sections.append(_exact_section(config, policy, problem))
        if results.content:
            sections.append(_study_section(config, problem, results.content))
    return sections


def _problem(config: Config) -> TabularMdp | None:
    name = config.data.environment
    return tabular_problem(name) if name is not None else None


def _value_section(config: Config, policy: Sourced[GreedyPolicy]) -> Section:
    learned = policy.content
    caption = "Estimated value of each state at each time step"
    if learned.known is not None:
        caption += "; pale where the action that is taken is unknown"
    return Section(
        title="What the policy expects",
        explanation="A pessimistic estimate: what is uncertain counts as bad. States that hardly"
        " anybody visited have values near the lowest possible.",
        metrics=[
            Metric(name="time steps", value=PublicValue(learned.horizon)),
            Metric(name="states", value=PublicValue(learned.states)),
            *_algorithm(config),
            *_resolution(config, policy),
        ],
        figures=[
            policy.figure(
                lambda one: plots.value_map(
                    one.values[:-1], sure=one.knows_taken, image_format="png"
                ),
                caption,
            )
        ],
    )


def _algorithm(config: Config) -> list[Metric]:
    """Return what was run where that is not the paper's algorithm by name alone."""
    if not isinstance(config, VapviConfig):
        return []
    return [Metric(name="algorithm", value=PublicValue(config.algorithm))]


def _resolution(config: Config, policy: Sourced[GreedyPolicy]) -> list[Metric]:
    """Return the noise of a count against its visits, and how many counts rise above it."""
    metrics = []
    if policy.content.count_noise is not None:
        noise = float(policy.content.count_noise)
        if isinstance(config, VapviConfig):
            seen = linear_resolution(config, noise)
        else:
            seen = tabular_resolution(config, noise)
        metrics.append(
            Metric(name="noise of a count", value=PublicValue(noise), explanation=str(seen))
        )
    known = policy.then(lambda one: one.known)
    if known.content is not None:
        metrics.append(
            Metric(
                name="known cells",
                value=known.value(_share_of_cells),
                explanation="a time step, state and action is known where its noisy count of visits"
                " is above the level of its noise, as 1 in 44 of those never visited is by chance"
                " (with pessimism as by default); of the others nothing was learned",
            )
        )
    return metrics


def _share_of_cells(known: NDArray[np.bool_] | None) -> str | None:
    return None if known is None else f"{int(known.sum())} of {known.size}"


def _exact_section(config: Config, policy: Sourced[GreedyPolicy], problem: TabularMdp) -> Section:
    horizon = config.model.horizon
    references = reference_values(problem, horizon)
    earned = policy.then(lambda one: exact_value(problem, one.actions, horizon))
    return Section(
        title=f"Exact value in {config.data.environment}",
        explanation="By dynamic programming in the environment's own model, which is public; no"
        " episode was played.",
        metrics=[
            Metric(name="this policy", value=earned.value(float)),
            Metric(
                name="suboptimality",
                value=earned.value(lambda value: references["optimal"] - value),
                explanation="what the best policy has more",
            ),
            *(
                Metric(name=NAMES[name], value=PublicValue(figure))
                for name, figure in references.items()
            ),
        ],
    )


def _study_section(config: Config, problem: TabularMdp, results: Sequence[Any]) -> Section:
    references = reference_values(problem, config.model.horizon)
    lines: dict[str, dict[float, list[float]]] = {}
    for cell in results:
        name = "no privacy" if cell["epsilon"] is None else f"epsilon {cell['epsilon']:g}"
        gap = references["optimal"] - cell["value"]
        lines.setdefault(name, {}).setdefault(cell["units"], []).append(gap)
    levels = {
        NAMES[name]: references["optimal"] - references[name] for name in ("behaviour", "uniform")
    }
    image = plots.lines_with_spread(
        lines, xlabel=f"number of units ({config.data.unit})", ylabel="suboptimality", levels=levels
    )
    return Section(
        title="The price of privacy",
        explanation="The same algorithm on fresh trajectories of the public environment, mean and"
        f" range of {config.evaluation.seeds} runs: how many units an epsilon asks for.",
        figures=[PublicFigure(image=image, caption="Suboptimality by number of units")],
        metrics=[
            Metric(
                name=f"{name}, {int(units)} units",
                value=PublicValue(sum(gaps) / len(gaps)),
                explanation="mean suboptimality",
            )
            for name, points in lines.items()
            for units, gaps in points.items()
        ],
    )
