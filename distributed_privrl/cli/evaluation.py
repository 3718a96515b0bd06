"""``evaluate`` and ``report``: what a synthetic dataset is good for."""

import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from distributed_privrl.cli.failures import UNEXPECTED_EXIT_CODE, InterruptedRunError
from distributed_privrl.cli.helptext import LedgerUrl, examples
from distributed_privrl.cli.text import show_values
from distributed_privrl.core.errors import ConfigError, PrivRLError

if TYPE_CHECKING:
    from pathlib import Path

    from distributed_privrl.core.config import RuntimeConfig
    from distributed_privrl.core.executor import Executor

CPUS_PER_AGENT = 0.5
"""Logical CPUs of an agent's actor; agents at a time are as many as real CPUs."""


_KINDS = {
    "released": "post-processing of a released dataset",
    "public": "of a dataset declared public",
}


def add_to(app: typer.Typer) -> None:
    """Add the verbs."""
    app.command(
        "evaluate",
        epilog=examples(
            "privrl evaluate --synthetic maze/umaze-private-v0 --env privrl/Maze2D-umaze-v0"
            " --out runs/evaluation",
            "privrl evaluate --synthetic clinic/stays-private-v0 --reference clinic/stays-v0"
            " --trainers none --out runs/evaluation",
            "privrl evaluate --synthetic maze/umaze-private-v0 --reference maze/umaze-v0"
            " --public maze/medium-v0 --trainers none --out runs/evaluation",
            "privrl evaluate --synthetic clinic/icu-private-v0 --reference clinic/icu-v0 --offline"
            " --trainers bc,discrete_bcq --steps 5000 --out runs/offline",
            "privrl evaluate --synthetic maze/umaze-private-v0 --executor local -o iql.beta=10"
            " --out runs/evaluation",
        ),
    )(evaluate)
    app.command("report", epilog=examples("privrl report runs/stays"))(report)


def evaluate(
    context: typer.Context,
    synthetic: Annotated[str, typer.Option(metavar="ID", help="id of the synthetic dataset")],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="folder for the reports: a path, s3://.. or gs://..")
    ],
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="a dataset to compare with; what comes of it goes to DIR/private, not for release",
        ),
    ] = None,
    public: Annotated[
        str | None,
        typer.Option(
            metavar="ID",
            help="public trajectories to train TrajScore's autoencoder on (with --reference)",
        ),
    ] = None,
    embedding: Annotated[
        Literal["pca", "tsne"],
        typer.Option(help="how rows are shown in the plane (with --reference)"),
    ] = "pca",
    offline: Annotated[
        bool,
        typer.Option(
            "--offline",
            help="judge agents without an environment, by estimates from the episodes of"
            " --reference, in DIR/private; Discrete actions",
        ),
    ] = False,
    environment: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="ENV_ID",
            help="Gymnasium id to evaluate agents in (default: the dataset's)",
        ),
    ] = None,
    trainers: Annotated[
        str,
        typer.Option(
            metavar="NAMES",
            help="agents to train, by commas, or none; Box actions: bc, iql, td3bc, edac, cql;"
            " Discrete actions: bc, discrete_cql, discrete_bcq; each with rllib_ before it, too",
        ),
    ] = "iql",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="training seeds an agent")] = 1,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="gradient steps an agent")
    ] = 500_000,
    episodes: Annotated[
        int, typer.Option(min=1, metavar="N", help="episodes of each evaluation")
    ] = 10,
    options: Annotated[
        list[str] | None,
        typer.Option(
            "-o", metavar="AGENT.KEY=VALUE", help="a hyper-parameter of an agent; may be repeated"
        ),
    ] = None,
    executor: Annotated[
        Literal["ray", "local"],
        typer.Option(help="local: one agent after the other in this process, without Ray"),
    ] = "ray",
    gpus_per_agent: Annotated[
        float,
        typer.Option(
            min=0.0,
            metavar="N",
            help="GPUs that an agent trains on, e.g. .5 for two agents on one; not rllib_ ones",
        ),
    ] = 0.0,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="go on in DIR: train what is missing, and what failed; reports show the --trainers"
            " of this command",
        ),
    ] = False,
    ledger: LedgerUrl = None,
) -> None:
    """Measure what a synthetic dataset is good for.

    Agents are trained on it, as many at a time as there are CPUs, and run in the environment; with
    --reference the same agents are trained on the real rows and both are compared, in DIR/private,
    which is not for release. With --offline both are valued on real episodes instead: where there
    is no simulator. rllib_iql and so on train through RLlib, on released or public rows.

    iql takes about 200 gradient steps a second on one core: forty minutes an agent at the default,
    so begin with --steps 5000. TrajScore is one step to progress.
    """
    names = trainer_names(trainers)
    for option in options or []:
        key, equals, _ = option.partition("=")
        if not equals or "." not in key.strip("."):
            raise ConfigError(f"-o {option} must look like AGENT.KEY=VALUE, e.g. iql.beta=3")

    from distributed_privrl.core.places import place_of
    from distributed_privrl.data.store import DatasetStore

    store, place = DatasetStore(), place_of("--out", out)
    for dataset in filter(None, (synthetic, reference, public)):
        store.info(dataset)  # a wrong id is said before imports that take seconds

    from distributed_privrl.cli.execution import rllib_trainers, termination_as_interrupt
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.core.config import RuntimeConfig, with_overrides
    from distributed_privrl.data.stored_folders import opened_folder
    from distributed_privrl.experiments.directory import holds_something
    from distributed_privrl.experiments.evaluate import (
        EvaluationRequest,
        Surroundings,
        evaluate_datasets,
    )

    agents = len(names) * seeds
    parallel = 1 if executor == "local" else max(1, min(agents, os.cpu_count() or 1))
    runtime = RuntimeConfig(
        workers=parallel,
        cpus_per_worker=CPUS_PER_AGENT,
        gpus_per_worker=gpus_per_agent,
        executor="ray" if parallel > 1 else "local",
    )
    begun = True
    try:
        with (
            termination_as_interrupt(),
            opened_folder(place) as folder,
            shown_progress() as progress,
        ):
            request = EvaluationRequest(
                synthetic=synthetic,
                reference=reference,
                public=public,
                embedding=embedding,
                environment=environment,
                trainers=names,
                options=with_overrides({}, options or []),
                seeds=seeds,
                steps=steps,
                episodes=episodes,
                offline=offline,
            )
            around = Surroundings(
                store=store,
                start_executor=partial(_started, runtime),
                parallel=parallel,
                device="cuda" if gpus_per_agent else "cpu",
                more_trainers=rllib_trainers(),
                ledger_url=ledger,
                progress=progress,
            )
            try:
                figures = evaluate_datasets(request, around, out=folder, resume=resume)
            finally:
                begun = holds_something(folder)
            _show(dict(figures), synthetic=synthetic, reference=reference, out=folder)
    except KeyboardInterrupt:
        line = go_on_line(context.obj, resume=begun)
        raise InterruptedRunError(f"interrupted: go on with `{line}`") from None
    if names and all(figures.get(name) == "failed" for name in names):
        raise typer.Exit(UNEXPECTED_EXIT_CODE)


def trainer_names(given: str) -> tuple[str, ...]:
    """Return the names in ``--trainers``; none of them for "none".

    Raises:
        ConfigError: a name is empty or there twice, or "none" stands beside others.

    Example:
        >>> trainer_names("bc, iql")
        ('bc', 'iql')
    """
    names = tuple(name.strip() for name in given.split(","))
    if "" in names:
        raise ConfigError(f"--trainers={given!r} has an empty name: give e.g. iql, or none")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ConfigError(f"--trainers={given!r} names {', '.join(twice)} twice")
    if "none" in names and len(names) > 1:
        raise ConfigError(f"--trainers={given!r}: none stands alone; leave it or the others out")
    return () if names == ("none",) else names


def _started(runtime: "RuntimeConfig") -> "Executor":
    """Start what agents are trained on; a Ray that does not start is one line."""
    from distributed_privrl.cli.execution import start_executor

    try:
        executor = start_executor(runtime)
    except PrivRLError:
        raise
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ConfigError(f"Ray does not start ({reason}): give --executor local") from error
    if runtime.gpus_per_worker:
        from distributed_privrl.stages.devices import check_device

        try:
            check_device(runtime, executor, asked="--gpus-per-agent")
        except ConfigError:
            executor.close()
            raise
    return executor


def go_on_line(words: Sequence[str], *, resume: bool = True) -> str:
    """Return the command line that goes on with an evaluation; a ledger's password is left out.

    Args:
        words: the command line as it was given, without the program.
        resume: whether there is something to go on with.

    Example:
        >>> go_on_line(["evaluate", "--synthetic", "a-v0", "--out", "my runs"])
        "privrl evaluate --synthetic a-v0 --out 'my runs' --resume"
    """
    kept = ["LEDGER" if "://" in word and "@" in word else word for word in words]
    words = [word for word in kept if word != "--resume"]
    return shlex.join(["privrl", *words, *(["--resume"] if resume else [])])


def _show(figures: dict[str, Any], *, synthetic: str, reference: str | None, out: "Path") -> None:
    """Write what may be shown, and where the reports are."""
    warn_of_failures(figures.pop("failed", {}))
    scores = figures.pop("normalised", {})
    kind = figures.pop("kind")
    shown = {
        name: _figure(value, scores.get(name))
        for name, value in figures.items()
        if value is not None
    }
    private, reasons = out / "private" / "report.html", []
    if kind == "private":
        reasons.append(f"{synthetic} has no valid certificate and was not declared public")
    else:
        shown["report"] = f"{out / 'report.html'} ({_KINDS[kind]})"
    if reference is not None:
        reasons.append(f"it compares with rows of {reference}")
    if reasons:
        shown["not for release"] = f"{private} ({'; '.join(reasons)})"
    show_values(shown)


def warn_of_failures(failed: Mapping[str, str]) -> None:
    """Say on stderr which agents failed, and why."""
    for name, reason in failed.items():
        typer.echo(f"warning: {name} failed: {reason}; --resume tries it again", err=True)


def _figure(value: object, score: float | None) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"mean return {value:.2f}" + ("" if score is None else f", normalised {score:.1f}")


def report(
    run_directory: Annotated[
        str, typer.Argument(metavar="RUN_DIR", help="the --out of a finished run")
    ],
    ledger: LedgerUrl = None,
) -> None:
    """Write the reports of a finished run anew, the one that is not for release, too."""
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.core.places import place_of
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.data.stored_folders import opened_folder
    from distributed_privrl.experiments.reports import rebuild_report

    place = place_of("RUN_DIR", run_directory)
    with opened_folder(place, name="RUN_DIR") as folder, shown_progress() as progress:
        path = rebuild_report(folder, store=DatasetStore(), ledger_url=ledger, progress=progress)
        shown = {"report": path, "not for release": path.parent / "private" / path.name}
        show_values({name: str(one) for name, one in shown.items() if one.exists()})
