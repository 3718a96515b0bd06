import numpy as np
import pytest

from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, metrics_record


def test_public_and_released_values_are_written():
    record = metrics_record(
        round=PublicValue(3), units=ReleasedValue(998, ledger_entry="e1"), stage=PublicValue("a")
    )
    assert record == {"round": 3, "units": 998, "units_ledger_entry": "e1", "stage": "a"}


@pytest.mark.parametrize("value", [0.5, 1, "text", None, True, np.float64(0.5), (PublicValue(1),)])
def test_anything_else_is_refused(value):
    with pytest.raises(TypeError, match="loss"):
        metrics_record(loss=value)


def test_a_look_alike_is_refused():
    class Sneaky(PublicValue):
        pass

    with pytest.raises(TypeError, match="loss"):
        metrics_record(loss=Sneaky(1.0))


def test_arrays_and_releases_without_an_entry_are_refused():
    with pytest.raises(TypeError, match="ndarray"):
        PublicValue(np.zeros(3))
    with pytest.raises(TypeError, match="ledger entry"):
        ReleasedValue(1.0, ledger_entry="")
    with pytest.raises(TypeError):
        ReleasedValue(1.0)


def test_numbers_that_are_not_finite_become_null():
    assert metrics_record(loss=PublicValue(float("nan"))) == {"loss": None}
