"""Evaluation of a dataset that is already there: agents, and fidelity against a reference."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.files import make_writable, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.labels import shown_labels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.embedding import EmbeddingMethod
from distributed_privrl.evaluation.explanation import DECLARED_PUBLIC
from distributed_privrl.evaluation.report import Section, write_report
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.evaluation.trainer import Options, Trainer
from distributed_privrl.experiments.agents import (
    EVALUATION_FILE,
    Trials,
    keep_trials,
    mean_normalised_return,
    mean_return,
    reasons,
    returns_section,
    write_curves,
)
from distributed_privrl.experiments.clearance import Release
from distributed_privrl.experiments.comparison import attempted_sections
from distributed_privrl.experiments.directory import RunDirectory, holds_something
from distributed_privrl.experiments.evaluation_checks import (
    check_agents_fit,
    check_compared,
    check_offline,
    clearance_of,
)
from distributed_privrl.experiments.off_policy import OffPolicy
from distributed_privrl.experiments.reference import Comparison
from distributed_privrl.experiments.reports import content_section
from distributed_privrl.experiments.samples import shown_rows
from distributed_privrl.experiments.trainers import known_trainers
from distributed_privrl.experiments.training import Training
from distributed_privrl.experiments.trials import AGENTS, TRAINING, TRAINING_ON_PRIVATE

BEGUN_FILE = "evaluation-of.json"
"""Says of which dataset a folder's evaluation is, and what the dataset was to the world then."""


@dataclass(frozen=True, kw_only=True)
class EvaluationRequest:
    """What is evaluated, against what, and by which agents.

    Args:
        synthetic: id of the dataset to evaluate.
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
        offline: value agents on the reference's episodes instead of running them in an environment.
    """

    synthetic: str
    reference: str | None = None
    public: str | None = None
    embedding: EmbeddingMethod = "pca"
    environment: str | None = None
    trainers: tuple[str, ...] = ("iql",)
    options: Options = field(default_factory=dict)
    seeds: int = 1
    steps: int = 500_000
    episodes: int = 10
    offline: bool = False


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What an evaluation runs in; nothing here changes what it finds.

    Args:
        store: datasets.
        ledger_url: the ledger, which a dataset that was declared public is held against; no other
            opens it.
        start_executor: starts what agents are trained on, once everything is checked.
        parallel: agents at a time.
        device: that plain loops compute on, in the executor's processes.
        more_trainers: trainers beside the plain loops, by name.
        progress: told where long work is.
    """

    store: DatasetStore = field(default_factory=DatasetStore)
    ledger_url: str | None = None
    start_executor: Callable[[], Executor] = LocalExecutor
    parallel: int = 1
    device: str = "cpu"
    more_trainers: Mapping[str, Trainer] = field(default_factory=dict)
    progress: Progress = silent


def evaluate_datasets(
    request: EvaluationRequest, around: Surroundings, *, out: Path, resume: bool = False
) -> dict[str, Any]:
    """Train agents on a synthetic dataset, compare it with a reference, write both reports.

    Args:
        request: what is evaluated.
        around: datasets, processes and ledger.
        out: a new folder; what compares with the reference goes to its ``private/``.
        resume: go on with what lies in ``out``: agents that are there are not trained again, except
            those that failed. Reports and ``evaluation.json`` show the request's trainers alone.

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
            ``public`` is given without a reference or is the reference, or ``offline`` cannot be
            (`check_offline`).
        StorageError: what says of which dataset an evaluation is, is damaged, or ``out`` cannot be
            written to.
        UnsafeError: a trainer shares its rows, and the dataset is neither released nor public.
        VerificationError: the dataset's certificate does not fit its files.

    Privacy: agents are post-processing of a dataset with a valid certificate, or of public rows.
    Otherwise (real rows, a run without privacy), and for whatever is computed from the reference,
    everything goes to ``private/``: files elsewhere, results and errors are the same whatever those
    rows are.
    """
    evaluated = _begin(request, around, out, resume=resume)
    source, directory, known = evaluated.source, RunDirectory(out), evaluated.trainers
    environment, certificate = evaluated.environment, evaluated.certificate
    figures: dict[str, Any] = {
        "dataset": request.synthetic,
        "environment": environment,
        "kind": source.kind,
    }
    with closing(around.start_executor() if known else LocalExecutor()) as executor:
        training = Training(
            store=around.store,
            environment=environment or "",
            seeds=request.seeds,
            steps=request.steps,
            episodes=request.episodes,
            options=request.options,
            more=around.more_trainers,
            executor=executor,
            parallel=around.parallel,
            progress=around.progress,
            judged_on=str(request.reference) if request.offline else "",
            device=around.device,
        )
        sections = _content(around.store, request.synthetic, evaluated)
        trials: Trials = []
        if known and not request.offline:
            folder = out if source.may_leave else directory.make_private()
            stage = TRAINING if source.may_leave else TRAINING_ON_PRIVATE
            trials = training.run(request.synthetic, known, kept=folder / AGENTS, stage=stage)
            place = training.environment
            sections.append(returns_section(trials, place, certificate=certificate, source=source))
            figures |= _figures(trials, known, place) if source.may_leave else {}
        keep_trials(trials, directory, may_leave=source.may_leave)
        write_curves(trials, directory, source)
        if source.may_leave:
            title = f"Evaluation of {request.synthetic}"
            _write(out, "public", title, certificate, sections)
        private = [] if source.may_leave else sections
        if request.reference is not None:
            comparison = Comparison(
                store=around.store,
                synthetic=request.synthetic,
                reference=request.reference,
                public=request.public,
                embedding=request.embedding,
                directory=directory,
                training=training,
                trials=trials,
                trainers={} if request.offline else known,
            )
            private = [*private, *comparison.sections()]
            if request.offline:
                judged = OffPolicy(
                    store=around.store,
                    synthetic=request.synthetic,
                    reference=request.reference,
                    directory=directory,
                    training=training,
                    trainers=known,
                )
                private += judged.sections()
    if private:
        directory.make_private()
        against = f"{request.synthetic} against {request.reference}"
        title = against if request.reference else f"Evaluation of {request.synthetic}"
        _write(directory.private, "private", title, certificate, private)
    return figures


@dataclass(frozen=True, kw_only=True)
class _Evaluated:
    """What is known of a dataset once everything has been checked.

    Args:
        source: its id, as what it is to the world.
        certificate: what reports say about the guarantee.
        environment: Gymnasium id, if there is one.
        trainers: by name.
    """

    source: Sourced[str]
    certificate: dict[str, Any]
    environment: str | None
    trainers: dict[str, Trainer]


def _begin(
    request: EvaluationRequest, around: Surroundings, out: Path, *, resume: bool
) -> _Evaluated:
    """Check everything before anything is trained, and make the folder."""
    store, synthetic = around.store, request.synthetic
    info = store.info(synthetic)
    environment = request.environment or info.environment
    _check_folder(out, synthetic, resume=resume)
    check_compared(store, info, reference=request.reference, public=request.public)
    known = known_trainers(request.trainers, request.options, more=around.more_trainers)
    source, release = clearance_of(store, synthetic, known, around.ledger_url)
    if request.offline:
        asked, reference = request.environment, request.reference
        check_offline(store, info, known, reference=reference, environment=asked)
    else:
        check_agents_fit(info, known, environment)
    _check_kind(out, source.kind, resume=resume)
    make_writable(out)
    write_atomically(out / BEGUN_FILE, json.dumps({"dataset": synthetic, "kind": source.kind}))
    return _Evaluated(
        source=source,
        certificate=_certificate(release),
        environment=environment,
        trainers=known,
    )


def _content(store: DatasetStore, synthetic: str, evaluated: _Evaluated) -> list[Section]:
    """Return the section on what is in the dataset."""
    source = evaluated.source

    def content() -> list[Section]:
        names = shown_labels(store.info(synthetic))
        rows = source.then(lambda dataset: shown_rows(store, dataset))
        return [content_section(rows, {}, names, evaluated.environment)]

    if source.may_leave:
        return content()
    return attempted_sections("What is in the dataset", content)


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
    shown = ("report.html", "report.json", EVALUATION_FILE, AGENTS, "events")
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
