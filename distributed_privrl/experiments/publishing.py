"""What a run releases, on disk: a synthetic dataset in the store, or files in its folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from distributed_privrl.core.config import OutputConfig, RunConfig
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.sensitive import Purpose
from distributed_privrl.data.kept import kept_in_rows, kept_in_trajectories
from distributed_privrl.data.metadata import CERTIFICATE_KEY, PUBLIC_KEY, Layout
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.experiments.cards import SYNTHETIC_KEY, algorithm_name, write_card
from distributed_privrl.experiments.clearance import dataset_outputs
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.privacy.certificate import Certificate, Output, hash_output
from distributed_privrl.stages.context import (
    MethodResult,
    ReleasedFiles,
    SyntheticTrajectories,
    SyntheticTransitions,
)

RUN_KEY = "privrl_run"


class Publisher(Protocol):
    """Writes what a run releases, hashes it, and ties the certificate to it."""

    @property
    def name(self) -> str:
        """What a reader calls the release."""
        ...

    @property
    def public(self) -> bool:
        """Whether it was made of public rows alone, so that nothing is promised to anybody."""
        ...

    def check_free(self) -> None:
        """Check that nothing of another run lies where the release goes, and it can be written.

        Raises:
            ConfigError: something does.
            StorageError: it cannot.
        """
        ...

    def write(self, result: MethodResult) -> None:
        """Write the release; what this run left there before is replaced."""
        ...

    def outputs(self) -> tuple[Output, ...]:
        """Return the hash of each released file."""
        ...

    def attach(self, certificate: Certificate) -> None:
        """Tie the certificate to the release."""
        ...


def publisher_of(
    config: RunConfig, store: DatasetStore, directory: RunDirectory, *, public: bool = False
) -> Publisher:
    """Return the publisher of a run's output.

    Args:
        config: of the run.
        store: where datasets go.
        directory: the run's folder.
        public: the run reads public rows alone.
    """
    output = config.output
    datasets = [
        dataset_publisher(config, store, directory, dataset, public=public)
        for dataset in output.datasets
    ]
    if isinstance(output, OutputConfig):
        return datasets[0]
    if config.privacy.epsilon is None:
        return FilesPublisher(folder=directory.private, files=output.files, directory=directory)
    return FilesPublisher(
        folder=directory.path, files=output.files, beside=tuple(datasets), public=public
    )


def dataset_publisher(
    config: RunConfig,
    store: DatasetStore,
    directory: RunDirectory,
    dataset: str,
    *,
    public: bool = False,
) -> "DatasetPublisher":
    """Return the publisher of a dataset that a run writes; arguments as of `publisher_of`."""
    layout = config.output.layout if isinstance(config.output, OutputConfig) else "transitions"
    return DatasetPublisher(
        config=config,
        dataset=dataset,
        layout=layout,
        store=store,
        directory=directory,
        public=public,
    )


@dataclass(frozen=True, kw_only=True)
class DatasetPublisher:
    """A synthetic dataset, with the certificate in its metadata.

    Args:
        config: of the run.
        dataset: its id.
        layout: of independent transitions.
        store: where the dataset goes.
        directory: the run's folder.
        public: it was made of public rows alone, and says so.
    """

    config: RunConfig
    dataset: str
    layout: Literal["transitions", "episodes"]
    store: DatasetStore
    directory: RunDirectory
    public: bool = False

    @property
    def name(self) -> str:
        """Id of the dataset."""
        return self.dataset

    def check_free(self) -> None:
        """Check that the dataset does not exist, or is this run's, and that it can be written.

        Raises:
            ConfigError: it is another's.
            StorageError: the store cannot be written to.
        """
        self.store.check_writable(self.name)
        if self.name in self.store.ids():
            owner = self.store.info(self.name).metadata.open(Purpose.CHECK).get(RUN_KEY)
            if owner != self.directory.run_id:
                raise ConfigError(
                    f"output.dataset={self.name} exists and is not this run's: choose another id"
                    " or a higher version"
                )

    def write(self, result: MethodResult) -> None:
        """Write the synthetic data; spaces and columns are declared of the sensitive dataset."""
        release = result.release
        if not isinstance(release, SyntheticTransitions | SyntheticTrajectories):
            raise TypeError(f"{self.config.method} releases {type(release).__name__}")
        if self.name in self.store.ids():  # written by this run, but perhaps not as it is now
            self.store.remove(self.name)
        info = self.store.info(self.config.data.sensitive)
        about: dict[str, Any] = {
            "observation_space": info.observation_space,
            "action_space": info.action_space,
            "environment": self.config.data.environment,
            "declared": info.declared,
            "metadata": {RUN_KEY: self.directory.run_id, **self._signed()},
        }
        if self.public:
            about["metadata"] |= {PUBLIC_KEY: True}
        # Declared facts, of rows of any method: post-processing.
        kept = info.kept
        if isinstance(release, SyntheticTransitions):
            self.store.write_transitions(
                self.name,
                (kept_in_rows(chunk, kept) for chunk in release.chunks()),
                layout=self.layout,
                has_successors=info.has_successors,
                **about,
            )
            return
        chunks = (kept_in_trajectories(chunk, kept) for chunk in release.chunks())
        # Declared with the rows, as the spaces are: an episode each, or packed.
        layout: Layout = "packed" if info.layout == "packed" else "episodes"
        self.store.write_trajectories(self.name, chunks, layout=layout, **about)
        self.store.update_metadata(self.name, release.facts())

    def outputs(self) -> tuple[Output, ...]:
        """Return the hash of each data file, and of the metadata but for their certificate."""
        return dataset_outputs(self.store, self.name)

    def attach(self, certificate: Certificate) -> None:
        """Put the certificate into the dataset's metadata, and a card beside; public: neither."""
        if self.public:
            return
        self.store.update_metadata(self.name, {CERTIFICATE_KEY: certificate.to_dict()})
        write_card(self.store, self.name)

    def _signed(self) -> dict[str, Any]:
        """Return Minari's keys on who made the dataset, and how, as far as they are declared."""
        output = self.config.output
        said = {**output.signed(), SYNTHETIC_KEY: True} if isinstance(output, OutputConfig) else {}
        return {"algorithm_name": algorithm_name(self.config.method), **said}


@dataclass(frozen=True, kw_only=True)
class FilesPublisher:
    """Files, such as a policy, in the run's folder with ``certificate.json`` beside them.

    Privacy: what was learned without privacy is as private as the rows: it goes to
    ``private/``, for its owner alone, and no certificate lists it.

    Args:
        folder: where they lie.
        files: their names, the one that the run is for first.
        directory: the run's folder, if the files go to its ``private/``.
        beside: of datasets that are released beside it, under certificates of their own.
        public: they were learned from public rows alone.
    """

    folder: Path
    files: tuple[str, ...]
    directory: RunDirectory | None = None
    beside: tuple[DatasetPublisher, ...] = ()
    public: bool = False

    @property
    def name(self) -> str:
        """Path of the first file."""
        return str(self.folder / self.files[0])

    def check_free(self) -> None:
        """Check the datasets beside the files; the run's folder is its own.

        Raises:
            ConfigError: one of them exists and is another run's.
            StorageError: the store cannot be written to.
        """
        for publisher in self.beside:
            publisher.check_free()

    def write(self, result: MethodResult) -> None:
        """Write the files.

        Raises:
            StorageError: the disk is full or the folder cannot be written.
        """
        release = result.release
        if not isinstance(release, ReleasedFiles):
            raise TypeError(
                f"{self.name} is to hold a file of its own, not {type(release).__name__}"
            )
        writers = {self.files[0]: release.save, **release.beside}
        if set(writers) != set(self.files):
            raise TypeError(f"files {self.files} are announced, {tuple(writers)} are released")
        if self.directory is not None:
            self.directory.make_private()
        for name, write in writers.items():
            write(self.folder / name)
            if self.directory is not None:
                (self.folder / name).chmod(0o600)

    def outputs(self) -> tuple[Output, ...]:
        """Return the hash of each file, if they may leave."""
        if self.directory is not None:
            return ()
        return tuple(Output(id=name, sha256=hash_output(self.folder / name)) for name in self.files)

    def attach(self, certificate: Certificate) -> None:
        """The certificate lies beside the files: nothing to do."""
