"""What a filter and rounds leave of experts, from public facts alone.

The limits are measured, and held against every stored cell: docs/design/0004-verdicts.md.
"""

import math

from distributed_privrl.methods.expert.config import ExpertConfig
from distributed_privrl.methods.expert.prefix_plan import FilterPlan
from distributed_privrl.stages.measured import Measured
from distributed_privrl.stages.round_plan import RoundPlan
from distributed_privrl.stages.round_verdict import round_noise
from distributed_privrl.stages.verdict import Grade, Verdict

SILENT = 0.64
"""Share of all experts that the threshold asks for from which a filter released nothing."""
LOST = 2.8
"""Noise of a round, in clip norms, from which rounds did not make up for such a filter."""
LOUDEST = {"discrete_cql": 0.75, "discrete_bcq": 1.1}
"""Noise of a round, in clip norms, up to which rounds alone were measured."""
_MOST_SHARE = 0.3
"""Threshold's share up to which filters were measured in every environment."""


def _share(environment: str, agent: str, row: str, epsilon: float, value: float) -> Measured:
    named = (("environment", environment), ("experts", 3000), ("agent", agent), ("row", row))
    return Measured(
        result="utility_expert", row=(*named, ("epsilon", epsilon)), figure="share", value=value
    )


SILENCE = _share("hiv", "discrete_cql", "ours", 2.5, 0.00221)
FILTERED = (
    _share("cartpole", "discrete_cql", "ours", 10.0, 0.985),
    _share("lunarlander", "discrete_cql", "ours", 10.0, 0.0229),
)
ROUNDS = {
    "discrete_cql": (
        _share("cartpole", "discrete_cql", "dp_sgd", 2.5, 0.984),
        _share("lunarlander", "discrete_cql", "dp_sgd", 10.0, -0.962),
    ),
    "discrete_bcq": (
        _share("hiv", "discrete_bcq", "dp_sgd", 2.5, 0.639),
        _share("acrobot", "discrete_bcq", "dp_sgd", 10.0, 0.051),
    ),
}
EVIDENCE = (SILENCE, *FILTERED, *ROUNDS["discrete_cql"], *ROUNDS["discrete_bcq"])
_OF_WHAT = "share of the return without privacy"


def verdict_of_experts(
    config: ExpertConfig, prefixes: FilterPlan | None, rounds: RoundPlan | None, weights: int | None
) -> Verdict | None:
    """Return what is left of the experts; None: the run is not private.

    No limit of noise tells useful runs from others: CartPole keeps what LunarLander has lost. So no
    run is ``fine``; refused are those alone whose filter is silent, and whose rounds do not help.

    Args:
        config: of the run.
        prefixes: the plan of the filter; None: there is none.
        rounds: of the rounds; None: there are none.
        weights: numbers that the rounds learn; None: public facts do not tell.
    """
    if config.privacy.epsilon is None:
        return None
    if config.filter.variant == "paper" and prefixes is not None:
        return _not_judged("filter.variant=paper")
    if config.training.local == "federated" and rounds is not None:
        return _not_judged("training.local=federated")
    if rounds is not None and weights is None:
        return Verdict(
            grade=Grade.NOT_JUDGED,
            reason="nothing public tells the columns, so the noise of a round is not known",
            advice="import the dataset, or name data.environment",
        )
    noise = None if rounds is None or weights is None else round_noise(rounds, weights)
    if prefixes is None:
        assert noise is not None
        return _of_rounds(config.model.agent, noise)
    return _of_filter(prefixes, noise)


def _not_judged(what: str) -> Verdict:
    return Verdict(grade=Grade.NOT_JUDGED, reason=f"nothing was measured for {what}")


def _of_filter(plan: FilterPlan, noise: float | None) -> Verdict:
    """Return the verdict on a run whose experts release prefixes."""
    mechanism, units = plan.mechanism, plan.units.value
    share = mechanism.threshold / units
    needed = math.ceil(mechanism.threshold / _MOST_SHARE)
    figures = {"threshold_share": share, "units_needed": float(needed)}
    said = f"a step is released where {share:.0%} of the experts would have taken it"
    if noise is not None:
        figures["noise_of_a_round"] = noise
        said += f", and the noise of a round is {noise:.3g} clip norms long"
    if share >= SILENT and (noise is None or noise >= LOST):
        return Verdict(
            grade=Grade.LIMITED,  # one environment was measured: no ground to refuse others
            reason=f"{said}; where {SILENT:.0%} and more had to agree, not one prefix was released,"
            f" and rounds as noisy learned nothing ({_OF_WHAT}: {SILENCE})",
            advice="raise privacy.epsilon, take fewer filter.draws or filter.share=0, or bring"
            f" {needed:,} experts",
            figures=figures,
        )
    good, bad = FILTERED
    return Verdict(
        grade=Grade.LIMITED,
        reason=f"{said}; no noise is known below which a policy is sure to be good ({_OF_WHAT}:"
        f" {good}, against {bad})",
        advice="try filter.share=0 with discrete_cql, which earned as much or more in three of four"
        f" environments, raise privacy.epsilon, or bring {needed:,} experts",
        figures=figures,
    )


def _of_rounds(agent: str, noise: float) -> Verdict:
    """Return the verdict on rounds alone."""
    figures = {"noise_of_a_round": noise}
    said = f"the noise of a round is {noise:.3g} clip norms long"
    if noise > LOUDEST[agent]:
        return Verdict(
            grade=Grade.NOT_JUDGED,
            reason=f"{said}; nothing was measured for rounds alone of {agent} above"
            f" {LOUDEST[agent]:g}",
            figures=figures,
        )
    good, bad = ROUNDS[agent]
    advice = "raise privacy.epsilon, or bring more experts with a batch that grows alike"
    if agent == "discrete_bcq":
        advice = f"take model.agent=discrete_cql, {advice}"
    return Verdict(
        grade=Grade.LIMITED,
        reason=f"{said}; no noise is known below which a policy is sure to be good ({_OF_WHAT}:"
        f" {good}, against {bad})",
        advice=advice,
        figures=figures,
    )
