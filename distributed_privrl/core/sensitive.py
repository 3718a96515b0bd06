"""What a sensitive dataset says of itself, in a type that nothing which may leave accepts."""

from enum import StrEnum
from typing import Any, Final, Generic, NoReturn, TypeVar

T_co = TypeVar("T_co", covariant=True)


class Purpose(StrEnum):
    """What a sensitive value may be opened for; a test lists each place that opens one."""

    STORAGE = "written to, or read from, the dataset's own files"
    CHECK = "compared with what is declared: goes on, or is refused before anything is drawn"
    COMPUTING = "decides how rows are read, in the process that reads them"
    OWNER = "shown to the data's owner, on the terminal or in the owner's own program"
    PRIVATE = "for what lies in private/"
    RELEASED = "of a dataset that was released or is public, whose metadata may leave with it"


class Sensitive(Generic[T_co]):
    """A value that was read from a dataset's metadata, or counted in its rows.

    It can be opened for a stated purpose and for nothing else: it has no arithmetic, no order, no
    truth, prints as ``<sensitive>``, and neither JSON nor pickle nor copies take it. So no metric,
    report, log, checkpoint or argument of an actor holds what is in it; mypy says so first.

    Args:
        value: what was read.

    Privacy:
        PRIVACY.md section 12: what a sensitive dataset says of itself is sensitive data.

    Example:
        >>> length = Sensitive(31)
        >>> f"the longest has {length} steps"
        'the longest has <sensitive> steps'
        >>> length.open(Purpose.CHECK) <= 40
        True
    """

    __slots__ = ("__value",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: T_co) -> None:
        self.__value: Final = value

    def open(self, purpose: Purpose) -> T_co:
        """Return the bare value.

        Args:
            purpose: for what; whoever opens it answers for the value's way from there.

        Raises:
            TypeError: ``purpose`` is none.
        """
        if not isinstance(purpose, Purpose):
            raise TypeError(f"a sensitive value is opened for a Purpose, not for {purpose!r}")
        return self.__value

    def __repr__(self) -> str:
        return "<sensitive>"

    def _refuse(self, *_: Any) -> NoReturn:
        raise TypeError("a sensitive value must be opened, for a stated Purpose, before it is used")

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __reduce_ex__ = __copy__ = __deepcopy__ = _refuse
