"""What can be wrong with an evaluation, found before any agent is trained."""

from collections.abc import Mapping
from contextlib import closing

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.metadata import DatasetInfo
from distributed_privrl.data.spaces import same_form
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.off_policy.judge import check_judgeable
from distributed_privrl.evaluation.returns import check_environment
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.evaluation.trainer import Trainer, check_trainer
from distributed_privrl.experiments.accounts import check_public
from distributed_privrl.experiments.clearance import Release, cleared, release_of
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.metrics import released_dataset


def check_agents_fit(
    info: DatasetInfo, trainers: Mapping[str, Trainer], environment: str | None
) -> None:
    """Check that agents can be trained on a dataset and run in an environment.

    Raises:
        ConfigError: there are no actions or rewards, or a trainer cannot use them; or there is no
            environment, it cannot be made, or its spaces are not those of the dataset.
    """
    if not trainers:
        return
    if not (info.has_action and info.has_reward):
        raise ConfigError(
            f"{info.id} has no action or no reward, which agents learn from: add --trainers none"
        )
    for trainer in trainers.values():
        check_trainer(trainer, info.action_space)
    if environment is None:
        raise ConfigError(
            f"{info.id} names no environment to evaluate in: give --env; for records of people,"
            " which have none, agents are valued on real episodes by --offline --reference ID"
        )
    check_environment(
        environment,
        {"observation": info.observation_space, "action": info.action_space},
        advised=info.environment,
    )


def check_offline(
    store: DatasetStore,
    info: DatasetInfo,
    trainers: Mapping[str, Trainer],
    *,
    reference: str | None,
    environment: str | None,
) -> None:
    """Check that agents can be trained on a dataset and valued on another's episodes.

    Args:
        store: datasets.
        info: of the dataset.
        trainers: of the agents.
        reference: id of the real episodes.
        environment: that was asked for.

    Raises:
        ConfigError: there is no reference, or it holds independent transitions; an environment was
            asked for; a trainer cannot use the actions, or they are neither Discrete nor a Box.
    """
    if reference is None:
        raise ConfigError("--offline values agents on real episodes: add --reference")
    if environment is not None:
        raise ConfigError(f"--offline needs no environment: leave out it or --env {environment}")
    check_judgeable(info.action_space)
    for trainer in trainers.values():
        check_trainer(trainer, info.action_space)
    if store.info(reference).kind == "transitions":
        raise ConfigError(
            f"--offline needs whole episodes, and --reference {reference} holds independent"
            " transitions: import it with its trajectories' column"
        )


def check_compared(
    store: DatasetStore, info: DatasetInfo, *, reference: str | None, public: str | None
) -> None:
    """Check that a dataset can be compared with others.

    Args:
        store: datasets.
        info: of the dataset.
        reference: id of real rows.
        public: id of public rows.

    Raises:
        ConfigError: one is missing, its rows have another form, the reference is the dataset
            itself, or ``public`` is given without a reference or is the reference.
    """
    if reference == info.id:
        raise ConfigError(
            f"--reference {reference} is the dataset itself: name the rows that it stands for"
        )
    if public is not None and reference is None:
        raise ConfigError(
            "--public is for TrajScore, which compares with real rows: add --reference"
        )
    if public is not None and public == reference:
        raise ConfigError(f"--public {public} is the reference: name a dataset that is public")
    for option, dataset in (("--reference", reference), ("--public", public)):
        if dataset is None:
            continue
        other = store.info(dataset)
        for part in ("observation_space", "action_space"):
            mine, theirs = getattr(info, part), getattr(other, part)
            if not same_form(mine, theirs):
                raise ConfigError(
                    f"{option} {dataset} cannot be compared with {info.id}: {part} is {theirs},"
                    f" not {mine}"
                )


def clearance_of(
    store: DatasetStore, dataset: str, trainers: Mapping[str, Trainer], ledger_url: str | None
) -> tuple[Sourced[str], Release | None]:
    """Return a dataset's id as what it is to the world, and the proof of it.

    Args:
        store: datasets.
        dataset: its id.
        trainers: who would read it.
        ledger_url: whose accounts a dataset declared public is held against; opened for such a
            dataset alone.

    Raises:
        UnsafeError: a trainer shares its rows, and they may not leave; or it was declared public
            though its rows have a budget.
        VerificationError: it claims a valid certificate that does not fit its files.
    """
    release = release_of(store, dataset)
    for trainer in trainers.values():
        if trainer.released_rows_only:  # the ledger is asked below, once
            cleared(store, dataset, reader=trainer.name, ledger=None)
    if release is None:
        return Sourced.private(dataset), None
    if release.certificate is None:
        with closing(Ledger(ledger_url)) as ledger:
            check_public(store, ledger, [dataset])
        return Sourced.public(dataset), release
    return Sourced.released(released_dataset(release.certificate, dataset)), release
