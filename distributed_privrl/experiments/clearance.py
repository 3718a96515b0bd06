"""Which rows may leave: the very files that a valid certificate names, or rows declared public."""

from dataclasses import dataclass, fields

from distributed_privrl.core.errors import UnsafeError, VerificationError
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import Transitions
from distributed_privrl.experiments.accounts import check_public, check_unmarked
from distributed_privrl.privacy.certificate import Certificate, Output, hash_output
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import verify_outputs


@dataclass(frozen=True, kw_only=True)
class Release:
    """That a dataset's rows may leave; `release_of` finds out.

    Args:
        dataset: its id.
        certificate: what its files were compared with; None: declared public.
    """

    dataset: str
    certificate: Certificate | None

    @property
    def certificate_digest(self) -> str | None:
        """Of the certificate."""
        return None if self.certificate is None else self.certificate.digest


class ReleasedTransitions(Transitions):
    """Transitions with the proof that they may leave, which selections of them have not."""

    release: Release | None = None


def release_of(store: DatasetStore, dataset: str) -> Release | None:
    """Say whether a dataset's rows may leave, by looking at its files.

    Args:
        store: where the dataset lies.
        dataset: its id.

    Returns:
        the proof; None where it has no valid certificate and was not declared public.

    Raises:
        ConfigError: no such dataset.
        VerificationError: it claims a valid certificate, whose digest or file hashes do not match,
            or that nothing paid for.
        UnsafeError: it is declared public and a side of a sensitive dataset.

    Privacy: post-processing of what was released; no event. Epsilon is not recomputed: that is
    ``privrl certificate verify``.
    """
    info = store.info(dataset)
    if info.certificate.get("status") == "valid":
        found = dataset_outputs(store, dataset)
        certificate = verify_outputs(info.certificate, found, source=dataset)
        if not certificate.ledger_entries:
            raise VerificationError(f"{dataset}: the certificate names no ledger entry that paid")
        return Release(dataset=dataset, certificate=certificate)
    if info.declared_public:
        check_unmarked(info)
        return Release(dataset=dataset, certificate=None)
    return None


def cleared(store: DatasetStore, dataset: str, *, reader: str, ledger: Ledger | None) -> Release:
    """Return the proof that rows may be given to who shares them with other processes.

    Args:
        store: where the dataset lies.
        dataset: its id.
        reader: who would read it, for the message.
        ledger: whose accounts a public dataset is held against; None where that was done before,
            on the machine that has the ledger.

    Raises:
        UnsafeError: it was neither released with a valid certificate nor declared public, or was
            declared public though its rows have a budget.
        VerificationError: as in `release_of`.

    Privacy: Ray Data keeps rows in an object store that other processes of the node can read. No
    noise is added here and no event charged, so only released and public rows pass.
    """
    release = release_of(store, dataset)
    if release is None:
        raise UnsafeError(
            f"{dataset} has no valid certificate and was not declared public, so {reader} may not"
            " read it: use a plain trainer, or release it with privrl run (public rows: privrl"
            " collect --public, or public: true in an import schema)"
        )
    if release.certificate is None and ledger is not None:
        check_public(store, ledger, [dataset])
    return release


def proven(transitions: Transitions, release: Release) -> ReleasedTransitions:
    """Return rows with the proof that they may leave.

    Args:
        transitions: rows that were read from ``release.dataset``, all or some.
        release: of that dataset.
    """
    names = [field.name for field in fields(Transitions)]
    found = ReleasedTransitions(**{name: getattr(transitions, name) for name in names})
    object.__setattr__(found, "release", release)
    return found


def proof_of(transitions: Transitions, *, reader: str) -> Release:
    """Return the proof that came with rows.

    Args:
        transitions: what ``reader`` was given.
        reader: who shares rows with other processes, for the message.

    Raises:
        UnsafeError: they came without.
    """
    if not isinstance(transitions, ReleasedTransitions) or transitions.release is None:
        raise UnsafeError(
            f"{reader} takes rows of a released or public dataset alone, with the proof:"
            " experiments.clearance has it"
        )
    return transitions.release


def dataset_outputs(store: DatasetStore, dataset: str) -> tuple[Output, ...]:
    """Return the hash of each data file, and of the metadata but for their certificate."""
    return tuple(
        Output(id=path.relative_to(store.root).as_posix(), sha256=hash_output(path))
        for path in (*store.files(dataset), store.metadata_file(dataset))
    )
