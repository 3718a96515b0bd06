"""What an audit found, as facts for programs and as sections for people."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.canaries import CONFIDENCE as CANARY_CONFIDENCE
from distributed_privrl.evaluation.canaries import CanaryRound
from distributed_privrl.evaluation.figures import PrivateFigure
from distributed_privrl.evaluation.intervals import FEWEST_RESAMPLED
from distributed_privrl.evaluation.membership import CONFIDENCE, AttackFigures, Estimate
from distributed_privrl.evaluation.neighbours import ALPHA, Copying
from distributed_privrl.evaluation.one_run import epsilon_at_least
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.experiments.attacks import Attacked
from distributed_privrl.privacy.accounting import epsilon
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.privacy.metrics import PublicValue

_GUESSING = "chance explains it"
_CLOSE_NOISE = 1e-9


@dataclass(frozen=True, kw_only=True)
class ChargedRound:
    """A calibrated round, and the delta that its epsilon is stated at.

    Args:
        mechanism: the round.
        delta: of the run.
        own_clipping: the method clips by a rule of its own, which canaries do not go through.
    """

    mechanism: PrivateRound
    delta: float
    own_clipping: bool = False

    @property
    def clipping(self) -> str:
        """Which clipping the canaries went through, in the method's view."""
        return "not the method's own: its gates test it" if self.own_clipping else "gradient"

    def epsilon(self, mu: float, *, sampling_probability: float) -> float:
        """Return the epsilon of one round whose Gaussian part has ``mu``; 0 for mu <= 0.

        Args:
            mu: sensitivity / standard deviation.
            sampling_probability: with which a unit takes part; 1 for sure, and 0 costs nothing.
        """
        if mu <= _CLOSE_NOISE or sampling_probability <= 0:
            return 0.0
        event = PoissonGaussianEvent(
            sampling_probability=sampling_probability, noise_multiplier=1 / mu, count=1
        )
        return epsilon(
            (event,),
            delta=self.delta,
            relation=self.mechanism.relation,
            accountant="pld",
            certified=False,
        )


def canary_facts(found: CanaryRound, charged: ChargedRound) -> dict[str, Any]:
    """Return the canary round as JSON: it depends on the mechanism alone, on no data.

    The epsilon of one round is of the noise and of the coins as measured; its low end takes the low
    ends of both, its high end the high ends.
    """
    certain = Estimate(value=1.0, low=1.0, high=1.0, chance=1.0)
    return {
        "canaries": found.canaries,
        "rows_of_a_canary": found.rows,
        "participants": found.participants,
        "noise_source": found.noise_source,
        "clipping": charged.clipping,
        "delta": charged.delta,
        "mu": _against(found.mu, "charged"),
        "sampled": _against(found.sampled, "configured"),
        "epsilon_of_one_round": {
            name: {
                end: charged.epsilon(getattr(found.mu, of), sampling_probability=getattr(share, of))
                for end, of in (
                    *(("value", "value"), ("low", "low"), ("high", "high")),
                    ("charged", "chance"),
                )
            }
            for name, share in (("sampled", found.sampled), ("all_units", certain))
        },
        "guesses": {
            "made": found.guesses.made,
            "right": found.guesses.right,
            "epsilon_at_least": epsilon_at_least(
                found.guesses, delta=charged.delta, confidence=CANARY_CONFIDENCE
            ),
            "charged": charged.epsilon(found.mu.chance, sampling_probability=1.0),
        },
    }


def canary_section(found: CanaryRound | str, charged: ChargedRound | None) -> Section:
    """Return a section on the canary round."""
    title = "One round over canaries"
    if isinstance(found, str) or charged is None:
        return Section(title=title, metrics=[Metric(name="canary round", value=str(found))])
    facts = canary_facts(found, charged)
    metrics = [
        Metric(name="clipping that was exercised", value=PublicValue(charged.clipping)),
        _public("mu of the noise", found.mu, "charged"),
        _public("share of canaries that took part", found.sampled, "configured"),
    ]
    for name, words in (("sampled", "with its coins"), ("all_units", "if every unit took part")):
        value = facts["epsilon_of_one_round"][name]
        metrics.append(
            Metric(
                name=f"epsilon of one round, {words}",
                value=PublicValue(value["value"]),
                explanation=f"{value['low']:.4g} .. {value['high']:.4g}; charged"
                f" {value['charged']:.4g}, at delta {charged.delta:g}",
            )
        )
    guesses = facts["guesses"]
    metrics.append(
        Metric(
            name="epsilon of one round at least, if every unit took part",
            value=PublicValue(guesses["epsilon_at_least"]),
            explanation=f"{guesses['right']} of {guesses['made']} guesses of who took part were"
            f" right; charged {guesses['charged']:.4g}, at delta {charged.delta:g}",
        )
    )
    return Section(
        title=title,
        explanation=f"{found.canaries} made-up units of at most {found.rows} rows, with orthogonal"
        " vectors, in one real round of workers, noise and ledger. It informs: the guarantee rests"
        " on the accounting.",
        metrics=metrics,
    )


def _against(estimate: Estimate, name: str) -> dict[str, float]:
    """Return an estimate as JSON, beside what the mechanism was set to, called ``name``."""
    values = asdict(estimate)
    set_to = values.pop("chance")
    return {**values, name: set_to}


def _public(name: str, estimate: Estimate, against: str) -> Metric:
    """Return a metric of the canary round, which reads no data."""
    metric = _estimated(name, estimate, against)
    return replace(metric, value=PublicValue(estimate.value))


def _estimated(name: str, estimate: Estimate, against: str) -> Metric:
    return Metric(
        name=name,
        value=estimate.value,
        explanation=f"{estimate.low:.4g} .. {estimate.high:.4g}; {against} {estimate.chance:.4g}",
    )


def membership_facts(found: Attacked | str) -> dict[str, Any] | str:
    """Return the membership attack as JSON; private."""
    if isinstance(found, str):
        return found
    figures = found.figures
    return {
        "rounds": found.rounds,
        "members": figures.members,
        "non_members": figures.non_members,
        "member_groups": figures.member_groups,
        "non_member_groups": figures.non_member_groups,
        "area": asdict(figures.area),
        "p_value": figures.p_value,
        "true_positive_rates": {
            f"{at:g}": None if rate is None else asdict(rate)
            for at, rate in figures.true_positive_rates.items()
        },
        "areas": found.areas,
        "fires": figures.fires(),
    }


def membership_section(found: Attacked | str, *, unit: str) -> Section:
    """Return a section on the membership attack on units; for private reports alone."""
    title = "Membership attack by loss"
    if isinstance(found, str):
        return Section(title=title, metrics=[Metric(name="membership attack", value=found)])
    figures = found.figures
    verdict = "the model gives members away" if figures.fires() else _GUESSING
    return Section(
        title=title,
        explanation=f"{figures.members} members and {figures.non_members} held out (unit: {unit}),"
        f" in {figures.member_groups} and {figures.non_member_groups} groups, scored by the mean"
        f" loss of the model after {found.rounds} rounds; intervals of {CONFIDENCE:.0%}: a"
        f" percentile bootstrap over groups, of rates the wider of it and Clopper and Pearson's."
        f"{_of_few(figures)} An attack that fails proves nothing.",
        metrics=[
            Metric(
                name="verdict",
                value=verdict,
                explanation=f"at p <= {ALPHA:g}, with the area's interval above guessing",
            ),
            _estimated("area under the ROC curve", figures.area, "guessing"),
            Metric(
                name="p of the area",
                value=figures.p_value,
                explanation="from permutations of"
                f" {figures.member_groups + figures.non_member_groups} groups",
            ),
            *(
                _true_positive_rate(at, rate, figures.non_member_groups)
                for at, rate in figures.true_positive_rates.items()
            ),
            *(
                Metric(name=f"area, {name} alone", value=area, explanation="not chosen by result")
                for name, area in found.areas.items()
            ),
        ],
        figures=[
            PrivateFigure(
                image=plots.roc_curves({"mean loss": figures.roc}), caption="ROC, members positive"
            )
        ],
    )


def _of_few(figures: AttackFigures) -> str:
    fewest = min(figures.member_groups, figures.non_member_groups)
    if fewest >= FEWEST_RESAMPLED:
        return ""
    return f" Of {fewest} groups on a side the bootstrap's is too narrow: p alone tells."


def _true_positive_rate(at: float, rate: Estimate | None, groups: int) -> Metric:
    name = f"true-positive rate at {at:.0%} false positives"
    if rate is None:
        return Metric(
            name=name,
            value="not estimable with so few",
            explanation=f"held out are {groups} groups: less than one would be a false positive",
        )
    return _estimated(name, rate, "guessing")


def copying_facts(found: Copying | str) -> dict[str, Any] | str:
    """Return the copying detector's findings as JSON; private."""
    if isinstance(found, str):
        return found
    names = (
        *("training_share", "expected_share", "p_value", "groups", "nearer_share"),
        *("nearer_p_value", "near_copies", "shared"),
    )
    return {**{name: getattr(found, name) for name in names}, "fires": found.fires()}


def copying_section(found: Copying | str) -> Section:
    """Return a section on the copying detector; for private reports alone."""
    title = "Copying detector"
    if isinstance(found, str):
        return Section(title=title, metrics=[Metric(name="copying detector", value=found)])
    verdict = "the model copies training rows" if found.fires() else _GUESSING
    return Section(
        title=title,
        explanation="Are released rows nearer to the training rows than to rows held out?",
        metrics=[
            Metric(name="verdict", value=verdict, explanation=f"at p <= {ALPHA:g}"),
            Metric(
                name="released rows whose nearest real row is a training row",
                value=found.training_share,
                explanation=f"{found.expected_share:.3f} without copying; p ="
                f" {found.p_value:.2g} from permutations of {found.groups} groups",
            ),
            Metric(
                name="how often a released row is nearer to the training rows than a row held out"
                " is",
                value=found.nearer_share,
                explanation=f".5 for a perfect model; rank test p = {found.nearer_p_value:.2g}, low"
                " too for a model that draws from the middle of the data alone",
            ),
            Metric(
                name="released rows nearer to a training row than the nearest 1 % held out",
                value=found.near_copies,
                explanation=".01 for a perfect model",
            ),
            Metric(
                name="rows held out that are training rows too",
                value=found.shared,
                explanation="above 0: the two sides are not apart, or rows repeat by chance",
            ),
        ],
    )


def compared_section(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Section:
    """Return a section that puts two audits side by side; for private reports alone.

    Models that were trained for different numbers of rounds cannot be compared: one has had less
    time to memorise, with privacy or without. The section says so.
    """
    metrics = []
    sides = [
        facts["membership"] if isinstance(facts["membership"], Mapping) else {}
        for facts in (mine, theirs)
    ]
    rounds = [side.get("rounds") for side in sides]
    agree = rounds[0] is not None and rounds[0] == rounds[1]
    metrics.append(
        Metric(
            name="rounds of training",
            value=f"{rounds[0]} and {rounds[1]}",
            explanation="equal: the figures may be compared"
            if agree
            else "NOT EQUAL: a difference between the figures says nothing about privacy; train"
            " both for the same number of rounds",
        )
    )
    for name, value in (
        ("epsilon", [_shown(facts.get("epsilon")) for facts in (mine, theirs)]),
        ("area under the ROC curve", [_area(side) for side in sides]),
        ("copying detector p", [_copying_p(facts) for facts in (mine, theirs)]),
    ):
        metrics.append(Metric(name=name, value=f"{value[0]} and {value[1]}"))
    return Section(
        title=f"Beside the audit of {theirs['run']}",
        explanation="This run first, the other one second.",
        metrics=metrics,
    )


def _shown(value: float | None) -> str:
    return "none" if value is None or not math.isfinite(value) else f"{value:.3g}"


def _area(side: Mapping[str, Any]) -> str:
    return f"{side['area']['value']:.3f}" if "area" in side else "none"


def _copying_p(facts: Mapping[str, Any]) -> str:
    found = facts["copying"]
    return f"{found['p_value']:.2g}" if isinstance(found, Mapping) else "none"
