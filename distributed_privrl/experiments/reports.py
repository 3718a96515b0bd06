"""The two reports of a run: what may leave, and what is computed from real rows.

``report.html`` reads synthetic and public rows alone. ``private/report.html`` compares with real
rows and is not for release.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from distributed_privrl.core.config import FilesOutputConfig, OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.labels import shown_labels
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.environments import maze_layout
from distributed_privrl.evaluation import plots
from distributed_privrl.evaluation.report import WHOLE_TRAJECTORIES, Metric, Section, write_report
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.experiments.accounts import check_public
from distributed_privrl.experiments.agents import Trials, returns_section
from distributed_privrl.experiments.cards import write_card
from distributed_privrl.experiments.comparison import attempted_sections, fidelity_section, is_maze
from distributed_privrl.experiments.counted_section import counted_sections
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.measures_report import measures_sections
from distributed_privrl.experiments.outside_bounds import TITLE as OUTSIDE
from distributed_privrl.experiments.outside_bounds import outside_sections
from distributed_privrl.experiments.public_facts import facts_sections, public_ranges
from distributed_privrl.experiments.publishing import publisher_of
from distributed_privrl.experiments.registry import load_config, method_named
from distributed_privrl.experiments.release_evaluation import stored_trials
from distributed_privrl.experiments.samples import shown_rows
from distributed_privrl.experiments.trajectory_reports import trajectory_sections
from distributed_privrl.experiments.unseen_values import unseen_sections
from distributed_privrl.experiments.usefulness_overview import TITLE
from distributed_privrl.experiments.usefulness_report import usefulness_sections
from distributed_privrl.marginals.asked import names_asked
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import released_dataset, released_file
from distributed_privrl.privacy.verification import read_certificate, verify_outputs

WRITING = "writing reports"
"""What the progress bar is called."""
COMPARED = "Beside the real rows"
"""Title of what a private report says where files cannot be held against real rows."""
PARTS = 5
"""Of the reports of a dataset: the public one, and four looks at the real rows."""


def write_reports(
    config: RunConfig,
    store: DatasetStore,
    directory: RunDirectory,
    certificate: Certificate,
    trials: Trials,
    *,
    ledger: Ledger,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> None:
    """Write report.html and report.json, and the private pair beside them.

    Args:
        config: of the run.
        store: datasets.
        directory: of the run.
        certificate: of the release.
        trials: agents that were trained on it.
        ledger: that the run was charged to.
        executor: where workers hold files against real rows; None: nobody does.
        progress: told which part is next.

    Privacy: the public pair shows a valid release and public datasets alone; what a run without
    privacy made goes to ``private/`` like the real rows. What goes wrong because of what these are
    is a line of the private report: an error that ended the run would tell of them.
    """
    if isinstance(config.output, OutputConfig):
        output = config.output
        _write_dataset_reports(
            config, output, store, directory, certificate, trials, ledger, progress
        )
    else:
        progress(WRITING, 0, 1)
        _write_file_reports(config, config.output, store, directory, certificate, trials, executor)
        progress(WRITING, 1, 1)


def _write_file_reports(
    config: RunConfig,
    output: FilesOutputConfig,
    store: DatasetStore,
    directory: RunDirectory,
    certificate: Certificate,
    trials: Trials,
    executor: Executor | None,
) -> None:
    """Write the reports that the method makes of its files; this process reads no real row."""
    inspection = method_named(config.method).inspection
    make, compare = inspection.file_report, inspection.real_report
    folder = directory.path if config.privacy.epsilon is not None else directory.private
    path = folder / output.files[0]
    releasable = certificate.status == "valid"
    file = (
        Sourced.released(released_file(certificate, path)) if releasable else Sourced.private(path)
    )
    sections = make(config, file, file.then(lambda _: trials)) if make is not None else []
    title = f"{config.method}: {output.about} {config.data.sensitive}"
    write_report(
        directory.report,
        directory.path / "report.json",
        title=title,
        certificate=certificate.to_dict(),
        sections=sections if releasable else [],
    )
    compared: list[Section] = []
    if compare is not None and executor is not None:
        compared = attempted_sections(COMPARED, lambda: compare(config, store, path, executor))
    if releasable and not compared:
        return
    directory.make_private()
    write_report(
        directory.private_report,
        directory.private / "report.json",
        title=title,
        certificate=certificate.to_dict(),
        sections=compared if releasable else [*sections, *compared],
        audience="private",
    )


def _write_dataset_reports(
    config: RunConfig,
    output: OutputConfig,
    store: DatasetStore,
    directory: RunDirectory,
    certificate: Certificate,
    trials: Trials,
    ledger: Ledger,
    progress: Progress,
) -> None:
    progress(WRITING, 0, PARTS, "public report")
    maze, dataset = config.data.environment, output.dataset
    releasable = certificate.status == "valid"
    source = (
        Sourced.released(released_dataset(certificate, dataset))
        if releasable
        else Sourced.private(dataset)
    )
    rows = source.then(lambda made: shown_rows(store, made))
    public = {name: shown_rows(store, name) for name in config.data.public}
    info = store.info(dataset)
    names = shown_labels(info)
    sections = measures_sections(config, store, ledger, certificate, directory.run_id, source)
    sections.append(content_section(rows, public, names, maze))
    if trials and maze:
        about = certificate.to_dict()
        sections.append(returns_section(trials, maze, certificate=about, source=source))
    sections += trajectory_sections(store, source, {name: name for name in public}, maze)
    sections += unseen_sections(store, source)
    begun = directory.begun_with(config)
    numbers = directory.path / "report.json"
    ranges = public_ranges(begun, store)
    facts: list[Section] = []
    if releasable:
        facts += counted_sections(
            directory.checkpoint,
            ledger,
            directory.run_id,
            info,
            unit=config.data.unit,
            asked=names_asked(config),
        )
        facts += facts_sections(begun, ranges, ledger, directory.run_id, info)
    write_report(
        directory.report,
        numbers,
        title=f"{output.dataset}: a synthetic dataset",
        certificate=certificate.to_dict(),
        sections=[*sections, *facts] if releasable else [],
    )
    write_card(store, dataset, report=json.loads(numbers.read_text()))
    real, synthetic = config.data.sensitive, rows.content
    parts: dict[str, Callable[[], Sequence[Section]]] = {
        TITLE: lambda: usefulness_sections(store, real=real, synthetic=dataset),
        OUTSIDE: lambda: outside_sections(store, real, ranges),
        "Fidelity": lambda: [fidelity_section(shown_rows(store, real), synthetic, names, maze)],
        WHOLE_TRAJECTORIES: lambda: trajectory_sections(
            store, Sourced.private(dataset), {"real": real}, maze
        ),
    }
    compared: list[Section] = []
    for done, (title, compute) in enumerate(parts.items(), start=1):
        progress(WRITING, done, PARTS, f"private report: {title}")
        compared += attempted_sections(title, compute)
    directory.make_private()
    write_report(
        directory.private_report,
        directory.private / "report.json",
        title=f"{output.dataset} against the real rows",
        certificate=certificate.to_dict(),
        sections=compared if releasable else [*sections, *compared],
        audience="private",
    )
    progress(WRITING, PARTS, PARTS)


def content_section(
    rows: Sourced[NDArray[Any]],
    public: Mapping[str, NDArray[Any]],
    names: Sequence[str],
    maze: str | None,
) -> Section:
    """Return a section that shows a dataset's rows, beside public ones if there are any.

    Args:
        rows: ``(N, D)``.
        public: of other datasets, each ``(N, D)``.
        names: of the columns.
        maze: environment id, for a map.
    """
    caption = "Each column of the rows" + (" beside the public ones" if public else "")
    figures = [
        rows.figure(
            lambda some: plots.column_histograms({"synthetic": some, **public}, names), caption
        )
    ]
    if maze is not None and is_maze(maze):
        figures.append(
            rows.figure(
                lambda some: plots.maze_positions({"synthetic": some[:, :2]}, maze_layout(maze)),
                "Where the agent of the rows has been",
            )
        )
    notes = ["Drawn from the private model."] if rows.kind == "released" else []
    if public:
        notes.append("Public datasets are shown for orientation.")
    return Section(
        title="What is in the dataset",
        explanation=" ".join(notes),
        metrics=[Metric(name="rows shown", value=rows.value(len))],
        figures=figures,
    )


def rebuild_report(
    run_directory: Path,
    *,
    store: DatasetStore | None = None,
    ledger_url: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Write the reports of a finished run anew and return the path of report.html.

    Args:
        run_directory: the ``--out`` of a finished run.
        store: datasets.
        ledger_url: the ledger that the run's public datasets, which the report shows, are held
            against.
        progress: told where the work is.

    Raises:
        ConfigError: the folder holds no finished run.
        VerificationError: the certificate was changed, or it is valid and what it names was.
        StorageError: another version of this program wrote the run.
        UnsafeError: a public dataset is none any more; see `check_public`.
    """
    directory = RunDirectory(run_directory)
    if not directory.certificate.exists():
        raise ConfigError(f"{run_directory} holds no finished run: give a --out of privrl run")
    directory.check_format()
    config = load_config(directory.config_path)
    store = store or DatasetStore()
    certificate = read_certificate(directory.certificate)
    if certificate.status == "valid":
        found = publisher_of(config, store, directory).outputs()
        verify_outputs(certificate.to_dict(), found, source=directory.certificate)
    with closing(Ledger(ledger_url)) as ledger:
        check_public(store, ledger, config.data.public)
        trials = stored_trials(directory, certificate)
        write_reports(
            config,
            store,
            directory,
            certificate,
            trials,
            ledger=ledger,
            executor=LocalExecutor(),
            progress=progress,
        )
    return directory.report
