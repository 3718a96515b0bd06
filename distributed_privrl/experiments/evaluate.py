"""Evaluation of a dataset that is already there: agents, and fidelity against a reference."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.metadata import DatasetInfo, check_may_leave
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.embedding import EmbeddingMethod, check_available
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.evaluation.report import Section, write_report
from distributed_privrl.evaluation.trainer import Trainer, find_trainer
from distributed_privrl.experiments.agents import (
    Trials,
    failures,
    mean_normalised_return,
    mean_return,
    published_cells,
    ratio_section,
    return_ratios,
    returns_section,
)
from distributed_privrl.experiments.comparison import (
    fidelity_section,
    score_trajectories,
    trajectory_section,
)
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.release_evaluation import EVALUATION_FILE
from distributed_privrl.experiments.reports import (
    content_section,
    layout_of,
    sampled_rows,
)
from distributed_privrl.experiments.trials import AGENTS, Training


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
    more_trainers: Mapping[str, Trainer] | None = None,
    resume: bool = False,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Train agents on a synthetic dataset, compare it with a reference, write both reports.

    Args:
        synthetic: id of the dataset to evaluate.
        out: a new folder; what compares with the reference goes to its ``private/``.
        reference: id of the dataset it stands for; the same agents are trained on it, as plain
            loops, and compared.
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
        more_trainers: trainers beside the plain loops, by name.
        resume: go on with what lies in ``out``: agents that are there are not trained again, except
            those that failed.
        progress: told where long work is.

    Returns:
        the figures that may leave: mean return over the last evaluations of each trainer; where
        there are any, under ``normalised`` the same by its references, under ``published`` the cell
        of the paper, in words, and under ``failed`` why agents failed.

    Raises:
        ConfigError: a dataset is missing, ``out`` is not empty, a trainer is unknown, agents are
            asked for without an environment or cannot use the dataset's actions, or ``public`` is
            given without a reference or is the reference.
        UnsafeError: a trainer shares its rows, and the dataset is neither released nor public.

    Privacy: agents are post-processing of a dataset with a valid certificate. Without one (real
    rows, a run without privacy), and for whatever is computed from the reference, everything goes
    to ``private/``.
    """
    store = store or DatasetStore()
    info = store.info(synthetic)
    environment = environment or info.environment
    if out.exists() and any(out.iterdir()) and not resume:
        raise ConfigError(f"{out} is not empty: choose another --out, or add --resume")
    check_available(embedding)
    if public is not None:
        _check_public(store, public, reference)
    known = {name: find_trainer(name, more=more_trainers) for name in trainers}
    for trainer in known.values():
        _check_trainer(trainer, info)
    if known and environment is None:
        raise ConfigError(f"{synthetic} names no environment to evaluate in: give --env")
    training = Training(
        root=str(store.root.absolute()),
        environment=environment or "",
        seeds=seeds,
        steps=steps,
        episodes=episodes,
        more=more_trainers or {},
        executor=executor or LocalExecutor(),
        parallel=parallel,
        progress=progress,
    )
    directory = RunDirectory(out)
    certificate = info.certificate or {"status": "unknown", "stages": []}
    releasable = certificate.get("status") == "valid"
    source = (certificate.get("ledger_entries") or ["unknown"])[-1]
    rows, names = sampled_rows(store, synthetic), layout_of(store, synthetic).column_names
    sections = [content_section({"synthetic": rows}, names, environment, source=source)]
    figures: dict[str, Any] = {"dataset": synthetic, "environment": environment}
    trials: Trials = []
    if known:
        folder = out if releasable else directory.make_private()
        trials = training.run(synthetic, known, kept=folder / AGENTS, stage="training agents")
        mode = 0o644 if releasable else 0o600
        write_atomically(folder / EVALUATION_FILE, json.dumps(trials), mode=mode)
        place = training.environment
        sections.append(returns_section(trials, place, certificate=certificate, source=source))
        figures |= _figures(trials, known, place, certificate)
    if releasable:
        _write(out, "public", f"Evaluation of {synthetic}", certificate, sections)
    private = [] if releasable else sections
    if reference is not None:
        real = sampled_rows(store, reference)
        directory.write_private("scores.json", json.dumps(_scores(real, rows)))
        fidelity_part = fidelity_section(real, rows, names, environment, embedding=embedding)
        private = [*private, fidelity_part]
        if known:
            private.append(_compared_agents(directory, training, reference, trials, known))
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


def _figures(
    trials: Trials, trainers: Iterable[str], environment: str, certificate: Mapping[str, Any]
) -> dict[str, Any]:
    means = {name: mean_return(trials, name) for name in trainers}
    scores = {name: mean_normalised_return(trials, name, environment) for name in means}
    cells = published_cells(trials, environment, certificate)
    more = {
        "normalised": {name: score for name, score in scores.items() if score is not None},
        "published": {name: f"{one.normalised_return:g}, {one}" for name, one in cells.items()},
        "failed": failures(trials),
    }
    return {
        **{name: "failed" if mean is None else mean for name, mean in means.items()},
        **{name: values for name, values in more.items() if values},
    }


def _compared_agents(
    directory: RunDirectory,
    training: Training,
    reference: str,
    trials: Trials,
    trainers: Mapping[str, Trainer],
) -> Section:
    """Train the same agents on real rows, as plain loops, and return how they compare.

    Privacy: computed from real rows without noise; all of it lies in ``private/``.
    """
    loops = {name: trainer.algorithm.name for name, trainer in trainers.items()}
    kept = directory.make_private() / f"{AGENTS}-on-real-rows"
    theirs = training.run(
        reference, dict.fromkeys(loops.values()), kept=kept, stage="reference agents"
    )
    ratios = return_ratios(trials, theirs, training.environment, loops)
    directory.write_private("ratios.json", json.dumps(ratios))
    return ratio_section(ratios, theirs)


def _check_trainer(trainer: Trainer, info: DatasetInfo) -> None:
    trainer.algorithm.check_actions(info.action_space)
    if trainer.released_rows_only:
        check_may_leave(info, reader=trainer.name)


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
    folder: Path,
    audience: Any,
    title: str,
    certificate: Mapping[str, Any],
    sections: Sequence[Section],
) -> None:
    write_report(
        folder / "report.html",
        folder / "report.json",
        title=title,
        certificate=certificate,
        sections=sections,
        audience=audience,
    )
