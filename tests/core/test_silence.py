"""Libraries at work on private rows raise nothing and print nothing."""

import os

import pytest

from distributed_privrl.core.silence import of_any


class Panic(BaseException):
    """As `pyo3_runtime.PanicException`, which is no `Exception`."""


def test_what_a_library_raises_or_prints_of_a_row_goes_nowhere(
    capfd: pytest.CaptureFixture[str],
) -> None:
    def fail(error: BaseException) -> int:
        os.write(2, b"panicked at the text of a person")
        print("a text of a person")
        raise error

    for error in (Panic(), ValueError(), MemoryError()):
        assert of_any(lambda found=error: fail(found), 7) == 7
    assert of_any(lambda: 3, 7) == 3
    print("afterwards")
    assert capfd.readouterr() == ("afterwards\n", "")


@pytest.mark.parametrize("stop", [KeyboardInterrupt, SystemExit])
def test_who_stops_it_is_heard(stop: type[BaseException]) -> None:
    def work() -> None:
        raise stop

    with pytest.raises(stop):
        of_any(work, None)
