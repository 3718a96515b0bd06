"""Errors that a user can act on, each with the exit code of the command line.

A message is one line: what is wrong (the argument's name and value) and what to do about it.
"""


class PrivRLError(Exception):
    """Base of every error that the command line shows without a traceback."""

    exit_code = 1
    final = False
    """Whether the run that it ends can never go on."""


class ConfigError(PrivRLError):
    """A configuration, argument or public input is wrong."""

    exit_code = 2


class BudgetError(PrivRLError):
    """No budget is set for the dataset, or the request would exceed it."""

    exit_code = 3


class SpentError(BudgetError):
    """All that a run paid for was drawn and lost, so that no resume goes on with it."""

    final = True


class UnsafeError(PrivRLError):
    """The request would make the stated guarantee false, so it is refused."""

    exit_code = 4


class LostAnswerError(UnsafeError):
    """The only answer that was charged for was drawn and lost; a second one would be free."""

    final = True


class RowsError(UnsafeError):
    """A refusal whose words tell of sensitive rows: they are for the rows' owner alone."""


class RowsWarning(UserWarning):
    """A warning whose words do."""


class MissingExtraError(PrivRLError):
    """An optional dependency is missing; the message names the extra."""

    exit_code = 5

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            f"{package} is not installed: pip install 'distributed_privrl[{extra}]' brings it"
        )


class VerificationError(PrivRLError):
    """A certificate does not hold."""

    exit_code = 6


class StorageError(PrivRLError):
    """A file, folder or database cannot be read or written."""

    exit_code = 7


class FolderInUseError(StorageError):
    """Another process works in the folder."""


class UselessError(PrivRLError):
    """The request is safe, and public facts tell that nothing but noise would come of it."""

    exit_code = 8


class WorkerLostError(PrivRLError):
    """A worker's process died and its call may or may not have run.

    Args:
        message: one line.
        may_return: the worker is being built again: `WorkerGroup.wait_for_lost` waits for it. False
            where the executor has given it up.
    """

    def __init__(self, message: str, *, may_return: bool = False) -> None:
        super().__init__(message)
        self.may_return = may_return


INTERRUPTED_EXIT_CODE = 130
