"""Evaluation of a dataset that is already there: agents, and fidelity against a reference."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.embedding import EmbeddingMethod, check_available
from distributed_privrl.evaluation.report import DECLARED_PUBLIC, Section, write_report
from distributed_privrl.evaluation.trainer import Options, Trainer
from distributed_privrl.experiments.agents import (
    EVALUATION_FILE,
    Trials,
    keep_trials,
    mean_normalised_return,
    mean_return,
    reasons,
    returns_section,
)
from distributed_privrl.experiments.clearance import Release
from distributed_privrl.experiments.comparison import attempted_sections
from distributed_privrl.experiments.directory import RunDirectory, holds_something, make_writable
from distributed_privrl.experiments.evaluation_checks import (
    check_agents_fit,
    check_compared,
    clearance_of,
    known_trainers,
)
from distributed_privrl.experiments.reference import Comparison
from distributed_privrl.experiments.reports import content_section, layout_of, sampled_rows
from distributed_privrl.experiments.training import Training
from distributed_privrl.experiments.trials import AGENTS, TRAINING, TRAINING_ON_PRIVATE

BEGUN_FILE = "evaluation-of.json"
"""Says of which dataset a folder's evaluation is, and what the dataset was to the world then."""


def evaluate_datasets(
    *,
    synthetic: str,
    out: Path,
    reference: str | None = None,
    public: str | None = None,
    embedding: EmbeddingMethod = "pca",
    environment: str | None = None,
    trainers: tuple[str, ...] = ("iql",),
    options: Options | None = None,
    seeds: int = 1,
    steps: int = 500_000,
    episodes: int = 10,
    store: DatasetStore | None = None,
    start_executor: Callable[[], Executor] = LocalExecutor,
    parallel: int = 1,
    more_trainers: Mapping[str, Trainer] | None = None,
    ledger_url: str | None = None,
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
        options: hyper-parameters of agents that differ from their defaults, by agent.
        seeds: agents of each trainer.
        steps: gradient steps an agent.
        episodes: episodes of each evaluation.
        store: datasets.
        ledger_url: the ledger, which a dataset that was declared public is held against; no other
            opens it.
        start_executor: starts what agents are trained on, once everything is checked.
        parallel: agents at a time.
        more_trainers: trainers beside the plain loops, by name.
        resume: go on with what lies in ``out``: agents that are there are not trained again, except
            those that failed. Reports and ``evaluation.json`` show these ``trainers`` alone.
        progress: told where long work is.

    Returns:
        what may be shown: dataset, environment and ``kind`` (released, public or private) and, if
        the dataset is released or public, the mean return over the last evaluations of each
        trainer, under ``normalised`` the same by its references where there are any, and under
        ``failed`` why agents failed.

    Raises:
        ConfigError: a dataset is missing or cannot be compared, ``out`` is a file or not empty, or
            holds no evaluation to resume, or one of another dataset or of the dataset as another
            kind; a trainer or an option is unknown, agents are asked for without an environment
            that fits or cannot use the dataset's actions, the reference is the dataset, or
            ``public`` is given without a reference or is the reference.
        StorageError: what says of which dataset an evaluation is, is damaged.
        UnsafeError: a trainer shares its rows, and the dataset is neither released nor public.
        VerificationError: the dataset's certificate does not fit its files.
        StorageError: ``out`` cannot be written to.

    Privacy: agents are post-processing of a dataset with a valid certificate, or of public rows.
    Otherwise (real rows, a run without privacy), and for whatever is computed from the reference,
    everything goes to ``private/``: files elsewhere, results and errors are the same whatever those
    rows are.
    """
    store = store or DatasetStore()
    info = store.info(synthetic)
    environment = environment or info.environment
    _check_folder(out, synthetic, resume=resume)
    check_available(embedding)
    check_compared(store, info, reference=reference, public=public)
    known = known_trainers(trainers, options or {}, more=more_trainers)
    source, release = clearance_of(store, synthetic, known, ledger_url)
    check_agents_fit(info, known, environment)
    _check_kind(out, source.kind, resume=resume)
    make_writable(out)
    write_atomically(out / BEGUN_FILE, json.dumps({"dataset": synthetic, "kind": source.kind}))
    certificate = _certificate(release)
    directory = RunDirectory(out)
    figures: dict[str, Any] = {
        "dataset": synthetic,
        "environment": environment,
        "kind": source.kind,
    }
    with closing(start_executor() if known else LocalExecutor()) as executor:
        training = Training(
            store=store,
            environment=environment or "",
            seeds=seeds,
            steps=steps,
            episodes=episodes,
            options=options or {},
            more=more_trainers or {},
            executor=executor,
            parallel=parallel,
            progress=progress,
        )

        def content() -> list[Section]:
            names = layout_of(store, synthetic).column_names
            rows = source.then(lambda dataset: sampled_rows(store, dataset))
            return [content_section(rows, {}, names, environment)]

        sections = (
            content() if source.may_leave else attempted_sections("What is in the dataset", content)
        )
        trials: Trials = []
        if known:
            folder = out if source.may_leave else directory.make_private()
            stage = TRAINING if source.may_leave else TRAINING_ON_PRIVATE
            trials = training.run(synthetic, known, kept=folder / AGENTS, stage=stage)
            keep_trials(trials, directory, may_leave=source.may_leave)
            place = training.environment
            sections.append(returns_section(trials, place, certificate=certificate, source=source))
            figures |= _figures(trials, known, place) if source.may_leave else {}
        else:
            keep_trials([], directory, may_leave=source.may_leave)
        if source.may_leave:
            _write(out, "public", f"Evaluation of {synthetic}", certificate, sections)
        private = [] if source.may_leave else sections
        if reference is not None:
            comparison = Comparison(
                store=store,
                synthetic=synthetic,
                reference=reference,
                public=public,
                embedding=embedding,
                directory=directory,
                training=training,
                trials=trials,
                trainers=known,
            )
            private = [*private, *comparison.sections()]
    if private:
        directory.make_private()
        title = f"{synthetic} against {reference}" if reference else f"Evaluation of {synthetic}"
        _write(directory.private, "private", title, certificate, private)
    return figures


def _check_folder(out: Path, dataset: str, *, resume: bool) -> None:
    """Check that a folder is new, or that of an evaluation of the dataset that goes on."""
    if not resume:
        if holds_something(out):
            raise ConfigError(
                f"{out} is not empty: choose another --out, or add --resume to go on with the"
                " evaluation in it"
            )
        return
    if not holds_something(out) or not (out / BEGUN_FILE).is_file():
        raise ConfigError(
            f"{out} holds no evaluation to go on with (no {BEGUN_FILE}): give the --out of one, or"
            " leave --resume out and choose a new --out"
        )
    if (begun := _begun(out)["dataset"]) != dataset:
        raise ConfigError(
            f"{out} holds an evaluation of {begun}, not of {dataset}: choose another --out, or"
            f" delete {out} to evaluate {dataset} there"
        )


def _check_kind(out: Path, kind: str, *, resume: bool) -> None:
    """Check that what lies in a folder was shown as what the dataset is now."""
    if not resume or (begun := _begun(out))["kind"] == kind:
        return
    shown = ("report.html", "report.json", EVALUATION_FILE, AGENTS)
    left = ", ".join(str(out / name) for name in shown if (out / name).exists())
    raise ConfigError(
        f"{begun['dataset']} was {begun['kind']} when the evaluation in {out} began and is {kind}"
        f" now: {f'delete {left}, and ' if left else ''}choose another --out"
    )


def _begun(out: Path) -> dict[str, str]:
    path = out / BEGUN_FILE
    try:
        facts = json.loads(path.read_text())
        return {name: str(facts[name]) for name in ("dataset", "kind")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is damaged: choose another --out") from error


def _certificate(release: Release | None) -> dict[str, Any]:
    """Return what reports say about the guarantee."""
    if release is None:
        return {"status": "unknown", "stages": []}
    if release.certificate is None:
        return {"status": DECLARED_PUBLIC, "method": "none", "stages": []}
    return release.certificate.to_dict()


def _figures(trials: Trials, trainers: Iterable[str], environment: str) -> dict[str, Any]:
    means = {name: mean_return(trials, name) for name in trainers}
    scores = {name: mean_normalised_return(trials, name, environment) for name in means}
    more = {
        "normalised": {name: score for name, score in scores.items() if score is not None},
        "failed": reasons(trials),
    }
    return {
        **{name: "failed" if mean is None else mean for name, mean in means.items()},
        **{name: values for name, values in more.items() if values},
    }


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
