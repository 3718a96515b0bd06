"""What real episodes say of agents, where there is no simulator; for ``private/`` alone."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from distributed_privrl.core.files import remove_file
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.off_policy.judge import ESTIMATORS, Estimate, Judgement
from distributed_privrl.evaluation.report import Metric, Section
from distributed_privrl.evaluation.trainer import Trainer
from distributed_privrl.experiments.agents import finished, reasons
from distributed_privrl.experiments.comparison import attempted_sections
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.halves import judge_of
from distributed_privrl.experiments.training import Training
from distributed_privrl.experiments.trials import AGENTS, TRAINING_ON_PRIVATE

OFF_POLICY_FILE = "off-policy.json"
WHO_ACTED = "mean return of who acted"
TITLE = "Valued on real episodes, without a simulator"
_STAGE = "off-policy estimates"
_FEWEST_EFFECTIVE = 30
_LEAST_MEAN_WEIGHT = 0.8
_MOST_UNSEEN = 0.05


@dataclass(frozen=True, kw_only=True)
class OffPolicy:
    """Agents on synthetic and on real rows, valued on real episodes beside who acted there.

    One half of the real units trains agents, the other judges all of them.

    Privacy: computed from real rows without noise, all of it for ``private/``. Whatever goes wrong
    because of what the rows are is a line of the private report.

    Args:
        store: datasets.
        synthetic: id of the dataset that is evaluated.
        reference: id of the real episodes.
        directory: whose ``private/`` results go to.
        training: how agents are trained, and that they are judged on ``reference``.
        trainers: of the agents.
    """

    store: DatasetStore
    synthetic: str
    reference: str
    directory: RunDirectory
    training: Training
    trainers: Mapping[str, Trainer]

    def sections(self) -> list[Section]:
        """Train and value everything, and return the section of the private report."""
        remove_file(self.directory.private / OFF_POLICY_FILE)
        return attempted_sections(TITLE, self._section)

    def _section(self) -> list[Section]:
        loops = {name: trainer.agent for name, trainer in self.trainers.items()}
        ours = self._trained(self.synthetic, self.trainers, "synthetic")
        theirs = self._trained(self.reference, dict.fromkeys(loops.values()), "real")
        self.training.progress(_STAGE, 0, 1)
        judge = judge_of(self.store, self.reference)
        done, acted = judge.mean_return(), judge.who_acted()
        self.training.progress(_STAGE, 1, 1)
        found = {WHO_ACTED: _numbers(done)}
        metrics = [
            Metric(
                name="who acted: mean return",
                value=done.value,
                explanation=f"of the episodes that judge; {_interval(done)}",
            ),
            Metric(
                name="who acted: fitted Q",
                value=acted.estimates[ESTIMATORS[0]].value,
                explanation="of a policy fitted to them; far from the mean return, fitted Q"
                f" misleads here; {_interval(acted.estimates[ESTIMATORS[0]])}",
            ),
        ]
        for trainer, loop in loops.items():
            for side, trials, name in (("synthetic", ours, trainer), ("real", theirs, loop)):
                judged = [Judgement.from_json(one["judgement"]) for one in finished(trials, name)]
                cell = f"{trainer}, {side}"
                failed = sum(one["trainer"] == name and "failed" in one for one in trials)
                seeds = f"{len(judged)} ok, {failed} failed"
                if not judged:
                    metrics.append(Metric(name=cell, value="all failed", explanation=seeds))
                    continue
                found[cell] = agent_record(judged, done)
                metrics += _metrics(cell, judged, done, seeds)
        for side, trials in (("synthetic", ours), ("real", theirs)):
            metrics += [
                Metric(name=f"{name}, on the {side} dataset", value=f"failed: {reason}")
                for name, reason in reasons(trials).items()
            ]
        self.directory.write_private(OFF_POLICY_FILE, json.dumps(found, allow_nan=False, indent=1))
        return [Section(title=TITLE, explanation=_explanation(judge.units), metrics=metrics)]

    def _trained(self, dataset: str, trainers: Iterable[str], side: str) -> list[dict[str, Any]]:
        kept = self.directory.make_private() / f"{AGENTS}-judged-{side}"
        return self.training.run(dataset, trainers, kept=kept, stage=TRAINING_ON_PRIVATE)


def _explanation(units: int) -> str:
    return (
        f"Undiscounted returns, estimated from the episodes of {units} real units; the other half"
        " of the units trained the agents on real rows. Intervals of 95 % are of a Bayesian"
        " bootstrap over units. All three estimates are of a policy that acts as who acted wherever"
        " rows do not show its own action."
    )


def _metrics(cell: str, judged: list[Judgement], done: Estimate, seeds: str) -> list[Metric]:
    """Return what is shown of one trainer's agents on one dataset."""
    metrics = []
    for name in ESTIMATORS:
        mean = Estimate.mean([one.estimates[name] for one in judged])
        gain = mean.minus(done)
        known = mean.known
        above = f"above who acted: {gain.value:.4g}, {_interval(gain)}" if known else ""
        metrics.append(
            Metric(
                name=f"{cell}: {name}",
                value=mean.value if known else "not known: no episode acts like it",
                explanation="; ".join(
                    filter(None, (_interval(mean) if known else "", above, seeds))
                ),
            )
        )
    effective, weight, unseen = _support(judged)
    weak = effective < _FEWEST_EFFECTIVE or weight < _LEAST_MEAN_WEIGHT
    metrics += [
        Metric(
            name=f"{cell}: effective episodes",
            value=effective,
            explanation=f"that carry the weights; their mean weight is {weight:.3g}, 1 at best"
            + (": too few to trust sampling and doubly robust" if weak else ""),
        ),
        Metric(
            name=f"{cell}: actions that rows never show",
            value=unseen,
            explanation="share; in their place stands what who acted did"
            + (": estimates are of another policy" if unseen > _MOST_UNSEEN else ""),
        ),
    ]
    return metrics


def _support(judged: list[Judgement]) -> tuple[float, float, float]:
    """Return the worst of the seeds' effective episodes, mean weights and unseen actions."""
    return (
        min(one.effective_episodes for one in judged),
        min(one.mean_weight for one in judged),
        max(one.unseen for one in judged),
    )


def agent_record(judged: list[Judgement], done: Estimate) -> dict[str, Any]:
    """Return what the file says of the agents of one trainer and dataset, over their seeds."""
    effective, weight, unseen = _support(judged)
    means = {name: Estimate.mean([one.estimates[name] for one in judged]) for name in ESTIMATORS}
    return {
        **{
            name: {**_numbers(mean), "above": _numbers(mean.minus(done))}
            for name, mean in means.items()
        },
        "effective episodes": effective,
        "mean weight": weight,
        "unseen": unseen,
        "seeds": len(judged),
    }


def _numbers(estimate: Estimate) -> dict[str, Any]:
    interval = estimate.interval
    return {
        "value": estimate.value if estimate.known else None,
        "interval": None if interval is None else [interval.low, interval.high],
    }


def _interval(estimate: Estimate) -> str:
    interval = estimate.interval
    return "no interval" if interval is None else f"95 %: {interval:.4g}"
