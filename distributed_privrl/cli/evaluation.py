"""``evaluate`` and ``report``: what a synthetic dataset is good for."""

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from distributed_privrl.cli.helptext import examples
from distributed_privrl.cli.text import show_values
from distributed_privrl.core.errors import ConfigError

CPUS_PER_AGENT = 0.5
"""Logical CPUs of an agent's actor; agents at a time are as many as real CPUs."""


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
        ),
    )(evaluate)
    app.command("report", epilog=examples("privrl report runs/stays"))(report)


def evaluate(
    synthetic: Annotated[str, typer.Option(metavar="ID", help="id of the synthetic dataset")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="folder for the reports")],
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
    environment: Annotated[
        str | None,
        typer.Option(
            "--env",
            metavar="ENV_ID",
            help="Gymnasium id to evaluate agents in (default: the dataset's)",
        ),
    ] = None,
    trainers: Annotated[
        str, typer.Option(metavar="NAMES", help="agents to train, by commas, or none")
    ] = "iql",
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="training seeds an agent")] = 1,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="gradient steps an agent")
    ] = 500_000,
    episodes: Annotated[
        int, typer.Option(min=1, metavar="N", help="episodes of each evaluation")
    ] = 10,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="go on in DIR: train what is missing, and what failed"),
    ] = False,
) -> None:
    """Measure what a synthetic dataset is good for.

    Agents are trained on it, as many at a time as there are CPUs, and run in the environment; with
    --reference the same agents are trained on the real rows and both are compared, in DIR/private,
    which is not for release. rllib_iql and so on train through RLlib, on released or public rows.
    """
    names = tuple(name.strip() for name in trainers.split(",") if name.strip())
    if not names:
        raise ConfigError(f"--trainers={trainers!r} is empty: give e.g. iql, or none")

    from distributed_privrl.cli.execution import start_executor, termination_as_interrupt
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.core.config import RuntimeConfig
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.evaluate import evaluate_datasets
    from distributed_privrl.runtime.rllib.trainer import RLLIB_TRAINERS

    names = () if names == ("none",) else names
    parallel = max(1, min(len(names) * seeds, os.cpu_count() or 1))
    runtime = RuntimeConfig(
        workers=parallel,
        cpus_per_worker=CPUS_PER_AGENT,
        executor="ray" if parallel > 1 else "local",
    )
    with termination_as_interrupt(), contextlib.ExitStack() as stack:
        executor = stack.enter_context(contextlib.closing(start_executor(runtime)))
        figures = evaluate_datasets(
            synthetic=synthetic,
            reference=reference,
            public=public,
            embedding=embedding,
            environment=environment,
            trainers=names,
            seeds=seeds,
            steps=steps,
            episodes=episodes,
            out=out,
            store=DatasetStore(),
            executor=executor,
            parallel=parallel,
            more_trainers=RLLIB_TRAINERS,
            resume=resume,
            progress=stack.enter_context(shown_progress()),
        )
    warn_of_failures(figures.pop("failed", {}))
    scores, published = figures.pop("normalised", {}), figures.pop("published", {})
    shown = {}
    for name, value in figures.items():
        if value is not None:
            shown[name] = _figure(value, scores.get(name))
        if name in published:
            shown[f"{name} in the paper"] = f"normalised {published[name]}"
    page, private = out / "report.html", out / "private" / "report.html"
    reports = {} if private.exists() and not page.exists() else {"report": str(page)}
    if reference is not None or not reports:
        reports["not for release"] = str(private)
    show_values(shown | reports)


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
        Path, typer.Argument(metavar="RUN_DIR", help="the --out of a finished run")
    ],
) -> None:
    """Write the reports of a finished run anew."""
    from distributed_privrl.cli.progress import shown_progress
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.reports import rebuild_report

    with shown_progress() as progress:
        path = rebuild_report(run_directory, store=DatasetStore(), progress=progress)
    typer.echo(str(path))
