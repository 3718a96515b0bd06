"""The whole path on a small problem: collect, set a budget, run, certify, say what it is worth."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from distributed_privrl.collection.recipes import collect
from distributed_privrl.core.config import OutputConfig, RunConfig, with_overrides
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import FOLDER_VARIABLE, DatasetStore
from distributed_privrl.environments import reference_returns
from distributed_privrl.evaluation.returns import normalised
from distributed_privrl.experiments.accounts import give_budget
from distributed_privrl.experiments.agents import mean_return, trainers_of
from distributed_privrl.experiments.demo_configs import (
    DEFAULT,
    DEMOS,
    ENVIRONMENT,
    EVALUATION,
    Demo,
)
from distributed_privrl.experiments.demo_texts import compare, make_corpus
from distributed_privrl.experiments.directory import holds_something
from distributed_privrl.experiments.registry import parse_config
from distributed_privrl.experiments.run import RunResult, run
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.units import PrivacyBudget, Relation
from distributed_privrl.privacy.verification import verify_certificate


@dataclass(frozen=True, kw_only=True)
class DemoResult:
    """What the demo made.

    Args:
        run: the run behind it.
        summary: the figures to print, by name.
        next_lines: lines of a shell that go on with what it made.
    """

    run: RunResult
    summary: dict[str, str]
    next_lines: tuple[str, ...]


def run_demo(
    out: Path,
    *,
    method: str = DEFAULT,
    quick: bool = False,
    progress: Progress = silent,
    executor_factory: Callable[[RunConfig], Executor],
) -> DemoResult:
    """Make a sensitive dataset (and a public one), and turn it into a private one or a policy.

    Everything, the ledger too, lies under ``out``: the demo touches nothing else.

    Args:
        out: a new folder.
        method: name of the method.
        quick: show the path alone, with so short a training that its figures say nothing.
        progress: told where long work is.
        executor_factory: makes the executor once the configuration is known.

    Raises:
        ConfigError: ``out`` is not empty, or the method has no demo, or no quick one.
    """
    if method not in DEMOS:
        raise ConfigError(f"method {method!r} has no demo: choose one of {', '.join(DEMOS)}")
    demo = DEMOS[method]
    if quick and not demo.quick:
        known = ", ".join(name for name, one in DEMOS.items() if one.quick)
        raise ConfigError(f"the demo of {method} has no --quick; those of {known} have")
    if holds_something(out):
        raise ConfigError(f"{out} is not empty: choose another --out, or remove it")
    store = DatasetStore(out / "datasets")
    asked = with_overrides(_kept_in(out, demo), demo.quick if quick else ())
    config = parse_config(asked, source="the demo's configuration")
    if demo.corpus is not None:
        make_corpus(demo.corpus, out, store, progress=progress)
    for recipe, dataset, arguments in demo.recipes:
        shown = partial(progress, f"collecting {recipe}")
        collect(recipe, dataset=dataset, store=store, progress=shown, **arguments)
    ledger_url = f"sqlite:///{(out / 'ledger.sqlite').absolute()}"
    set_budget(config, store, ledger_url)
    executor = executor_factory(config)
    try:
        result = run(
            config, executor, out=out / "run", ledger_url=ledger_url, store=store, progress=progress
        )
    finally:
        executor.close()
    summary = _summary(config, result, ledger_url)
    if demo.corpus is not None:
        verify_certificate(result.directory.certificate)
        summary |= {"certificate": f"{result.directory.certificate} (verified)"}
        summary |= compare(config, out, result.directory)
    elif not isinstance(config.output, OutputConfig):
        summary |= _values(result)
    return DemoResult(
        run=result,
        summary=summary | {"datasets": str(store.root)},
        next_lines=_next_lines(config, result, store),
    )


def _kept_in(out: Path, demo: Demo) -> dict[str, Any]:
    """Return the demo's configuration, with a model of public prose kept in ``out``, too."""
    model = demo.config.get("model", {})
    if "language" not in model:
        return demo.config
    language = {**model["language"], "folder": str((out / "languages").absolute())}
    return {**demo.config, "model": {**model, "language": language}}


def _next_lines(config: RunConfig, result: RunResult, store: DatasetStore) -> tuple[str, ...]:
    """Return how the other verbs are found, and the demo's datasets by them, and one of them."""
    data, run_folder = store.root.absolute(), result.directory.path.absolute()
    words = ["certificate", "verify", str(result.directory.certificate.absolute())]
    if isinstance(config.output, OutputConfig):
        out = run_folder.with_name("evaluation")
        words = ["evaluate", "--synthetic", result.released, *_as_evaluated(config)]
        words += ["--out", str(out)]
    lines = (f"export {FOLDER_VARIABLE}={shlex.quote(str(data))}", shlex.join(["privrl", *words]))
    return (*_activation(), *lines)


def _activation() -> tuple[str, ...]:
    """Return the line that puts ``privrl`` on the path, where a shell does not have it yet."""
    activated = os.environ.get("VIRTUAL_ENV", "")
    if sys.prefix == sys.base_prefix or activated == sys.prefix:
        return ()
    return (f"source {shlex.quote(str(Path(sys.prefix) / 'bin' / 'activate'))}",)


def _as_evaluated(config: RunConfig) -> list[str]:
    """Return the arguments of ``evaluate`` that train the demo's agents again, to the same figure.

    A demo without agents gets those of the others.
    """
    evaluation = config.evaluation
    if not evaluation.trainers:
        evaluation = type(evaluation).model_validate(EVALUATION)
    words = ["--trainers", ",".join(evaluation.trainers)]
    for name in ("seeds", "steps", "episodes"):
        words += [f"--{name}", str(getattr(evaluation, name))]
    for agent, options in evaluation.options.items():
        for name, value in options.items():
            words += ["-o", f"{agent}.{name}={json.dumps(value, separators=(',', ':'))}"]
    return words


def set_budget(config: RunConfig, store: DatasetStore, ledger_url: str) -> None:
    """Give the sensitive dataset the budget that the configuration asks for."""
    if config.privacy.epsilon is None:
        return
    budget = PrivacyBudget(
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        unit=config.data.unit,
        relation=Relation(config.privacy.relation),
    )
    ledger = Ledger(ledger_url)
    try:
        give_budget(store, ledger, dataset=config.data.sensitive, budget=budget)
    finally:
        ledger.close()


def _summary(config: RunConfig, result: RunResult, ledger_url: str) -> dict[str, str]:
    certificate = result.certificate
    summary = {
        "sensitive dataset": config.data.sensitive,
        "released": result.released,
        "epsilon": f"{certificate.epsilon:.3f} (delta {certificate.delta:g})",
        "certificate": str(result.directory.certificate),
        "report": str(result.directory.report),
        "ledger": ledger_url,
    }
    if not isinstance(config.output, OutputConfig):
        return summary
    for trainer in trainers_of(result.trials):
        score = mean_return(result.trials, trainer)
        if score is None:
            summary[f"{trainer} trained on it"] = "failed; the report says why"
            continue
        share = normalised(score, reference_returns(ENVIRONMENT))
        summary[f"{trainer} trained on it"] = (
            f"return {score:.1f}; {share:.0f} on a scale where a random policy has 0 and a planner"
            " that knows the maze 100. So short a training says little of the rows"
            " (docs/utility.md)"
        )
    return summary


def _values(result: RunResult) -> dict[str, str]:
    """Return what the report found in the environment's own model, or in its simulator."""
    report = json.loads((result.directory.path / "report.json").read_text())
    titles = "Exact value", "What the policy earns"
    section = next(s for s in report["sections"] if s["title"].startswith(titles))
    return {
        metric["name"]: f"{metric['value']:.3f}"
        for metric in section["metrics"]
        if metric["name"] != "suboptimality"
    }
