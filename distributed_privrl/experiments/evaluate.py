"""Evaluation of a dataset that is already there: agents, and fidelity against a reference."""

import json
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.metadata import CERTIFICATE_KEY
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.embedding import EmbeddingMethod, check_available
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.report import Section, write_report
from distributed_privrl.evaluation.trainer import find_trainer
from distributed_privrl.experiments.comparison import (
    fidelity_section,
    score_trajectories,
    trajectory_section,
)
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.reports import (
    content_section,
    layout_of,
    returns_section,
    sampled_rows,
)
from distributed_privrl.experiments.trials import TrialSpec, learning_curve, run_trials


def evaluate_datasets(
    *,
    synthetic: str,
    out: Path,
    reference: str | None = None,
    public: str | None = None,
    embedding: EmbeddingMethod = "pca",
    environment: str | None = None,
    trainers: tuple[str, ...] = ("iql",),
    seeds: int = 1,
    steps: int = 500_000,
    episodes: int = 10,
    store: DatasetStore | None = None,
    executor: Executor | None = None,
    parallel: int = 1,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train agents on a synthetic dataset, compare it with a reference, write both reports.

    Args:
        synthetic: id of the dataset to evaluate.
        out: a new folder; what compares with the reference goes to its ``private/``.
        reference: id of the dataset it stands for.
        public: id of a public dataset that TrajScore's autoencoder is trained on.
        embedding: how rows of both are shown in the plane.
        environment: Gymnasium id (default: the dataset's own).
        trainers: names; none trains no agent.
        seeds: agents of each trainer.
        steps: gradient steps an agent.
        episodes: episodes of each evaluation.
        store: datasets.
        executor: where agents are trained.
        parallel: agents at a time.
        progress: told where long work is.

    Returns:
        the figures that may leave: mean return over the last evaluations of each trainer.

    Raises:
        ConfigError: a dataset is missing, ``out`` is not empty, a trainer is unknown, agents are
            asked for without an environment, or ``public`` is given without a reference or is the
            reference.

    Privacy: agents are post-processing of a dataset with a valid certificate. Without one (real
    rows, a run without privacy), and for whatever is computed from the reference, everything goes
    to ``private/``.
    """
    store = store or DatasetStore()
    info = store.info(synthetic)
    environment = environment or info.environment
    if out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty: choose another --out")
    check_available(embedding)
    if public is not None:
        _check_public(store, public, reference)
    for name in trainers:
        find_trainer(name)
    if trainers and environment is None:
        raise ConfigError(f"{synthetic} names no environment to evaluate in: give --env")
    directory = RunDirectory(out)
    certificate = info.metadata.get(CERTIFICATE_KEY) or {"status": "unknown", "stages": []}
    releasable = certificate.get("status") == "valid"
    entries = certificate.get("ledger_entries") or ["unknown"]
    rows, names = sampled_rows(store, synthetic), layout_of(store, synthetic).column_names
    sections = [content_section({"synthetic": rows}, names, environment, source=entries[-1])]
    figures: dict[str, Any] = {"dataset": synthetic, "environment": environment}
    if trainers and environment is not None:
        specs = [
            TrialSpec(
                root=str(store.root.absolute()),
                dataset=synthetic,
                environment=environment,
                trainer=trainer,
                seed=seed,
                steps=steps,
                episodes=episodes,
            )
            for trainer in trainers
            for seed in range(seeds)
        ]
        own = executor or LocalExecutor()
        trials = run_trials(specs, own, parallel=parallel, progress=progress)
        if releasable:
            write_atomically(out / "evaluation.json", json.dumps(trials))
        else:
            directory.write_private("evaluation.json", json.dumps(trials))
        sections.append(returns_section(trials, environment, source=entries[-1]))
        for trainer in trainers:
            mine = [
                learning_curve(trial).figure() for trial in trials if trial["trainer"] == trainer
            ]
            figures[trainer] = sum(mine) / len(mine)
    if releasable:
        _write(out, "public", f"Evaluation of {synthetic}", certificate, sections)
    private = [] if releasable else sections
    if reference is not None:
        real = sampled_rows(store, reference)
        directory.write_private("scores.json", json.dumps(_scores(real, rows)))
        fidelity_part = fidelity_section(real, rows, names, environment, embedding=embedding)
        private = [*private, fidelity_part]
        if public is not None:
            progress("TrajScore", 0, 1)
            score = score_trajectories(store, real=reference, synthetic=synthetic, public=public)
            private.append(trajectory_section(score, public))
            progress("TrajScore", 1, 1)
    if private:
        directory.make_private()
        title = f"{synthetic} against {reference}" if reference else f"Evaluation of {synthetic}"
        _write(directory.private, "private", title, certificate, private)
    return figures


def _check_public(store: DatasetStore, public: str, reference: str | None) -> None:
    if reference is None:
        raise ConfigError(
            "--public is for TrajScore, which compares with real rows: add --reference"
        )
    if public == reference:
        raise ConfigError(f"--public {public} is the reference: name a dataset that is public")
    store.info(public)


def _scores(real: Any, synthetic: Any) -> dict[str, float]:
    scores = fidelity(real, synthetic)
    return {"marginal": scores.marginal, "correlation": scores.correlation}


def _write(
    folder: Path, audience: Any, title: str, certificate: dict[str, Any], sections: list[Section]
) -> None:
    write_report(
        folder / "report.html",
        folder / "report.json",
        title=title,
        certificate=certificate,
        sections=sections,
        audience=audience,
    )
