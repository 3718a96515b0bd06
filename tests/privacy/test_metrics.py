import ast
import copy
import dataclasses
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import distributed_privrl
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.privacy.certificate import Output, hash_output
from distributed_privrl.privacy.metrics import (
    Answer,
    PublicValue,
    ReleasedValue,
    metrics_record,
    released_dataset,
    released_file,
    settled_answer,
    stated_answer,
)
from tests.worlds.answers import answer, entry_of, released

PACKAGE = Path(distributed_privrl.__file__).parent


def test_public_and_released_values_are_written():
    record = metrics_record(
        round=PublicValue(3),
        units=released(998, "e1"),
        stage=PublicValue("a"),
        none=PublicValue(()),
    )
    assert record == {
        "round": 3,
        "units": 998,
        "units_ledger_entry": "e1",
        "stage": "a",
        "none": [],
    }


@pytest.mark.parametrize(
    "value",
    [
        *(0.5, 1, "text", None, True, np.float64(0.5), (PublicValue(1),)),
        *(Sensitive(0.5), answer(0.5, "e1")),
    ],
)
def test_anything_else_is_refused(value):
    with pytest.raises(TypeError, match="loss"):
        metrics_record(loss=value)


def test_a_look_alike_is_refused():
    class Sneaky(PublicValue):
        pass

    with pytest.raises(TypeError, match="loss"):
        metrics_record(loss=Sneaky(1.0))


def test_what_is_no_scalar_is_refused():
    for value in (np.zeros(3), [1.0], (1.0, [2.0]), Sensitive(1.0), (Sensitive(1.0),)):
        with pytest.raises(TypeError, match="a metric is a number, a text or null"):
            PublicValue(value)
        with pytest.raises(TypeError, match="a metric is a number, a text or null"):
            answer(3, "e1").map(lambda _, shown=value: shown)


def test_numbers_that_are_not_finite_become_null():
    assert metrics_record(loss=PublicValue(float("nan"))) == {"loss": None}
    assert metrics_record(some=PublicValue((1.0, float("inf")))) == {"some": [1.0, None]}


def test_no_released_value_is_made_of_a_number_and_a_name():
    made = released(31.5, "e1")
    for build in (
        lambda: ReleasedValue(31.5, ledger_entry="e1"),
        lambda: ReleasedValue(31.5, ledger_entry="e1", made=object()),
        lambda: dataclasses.replace(made, value=40.0),
        lambda: Answer(31.5, ("e1",)),
    ):
        with pytest.raises(TypeError, match="map the answer of the release"):
            build()
    assert made == released(31.5, "e1") != released(31.5, "e2")


def test_only_this_module_makes_released_values_and_answers():
    """Nobody calls the constructors, or has the proof that lets them pass."""
    callers = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "id", getattr(node, "attr", None))
            called = isinstance(node, ast.Call) and getattr(
                node.func, "id", getattr(node.func, "attr", None)
            )
            if called in ("ReleasedValue", "Answer") or name == "_MADE_HERE":
                callers.add(path.relative_to(PACKAGE).as_posix())
    assert callers == {"privacy/metrics.py"}


def test_an_answer_is_mapped_with_answers_and_public_values_alone():
    mean, count = answer(30.0, "count"), answer(4, "run")
    shown = mean.map(lambda a, b, c: a * b + c, count, PublicValue(1.0))
    assert (shown.value, shown.ledger_entry) == (121.0, "run")
    both = mean.then(lambda a, b: [a, b], count)
    assert (both.value, both.entries) == ([30.0, 4], ("count", "run"))
    assert both.paid_by("count").map(len).ledger_entry == "count"
    with pytest.raises(UnsafeError, match="none of the entries that paid"):
        both.paid_by("another")
    for other in (1.0, Sensitive(1.0), released(1.0, "run")):
        with pytest.raises(TypeError, match="go with answers and public values"):
            mean.map(max, other)


def test_an_answer_of_an_open_entry_is_refused():
    with pytest.raises(UnsafeError, match="e1 is open"):
        settled_answer(entry_of("e1", status="open"), 3)


def certificate(**changes):
    values = {"status": "valid", "ledger_entries": ("a", "b"), "outputs": (), "stages": ()}
    return SimpleNamespace(**{**values, **changes})


def test_a_certificate_answers_for_its_own_files_alone(tmp_path):
    path = tmp_path / "policy.safetensors"
    path.write_bytes(b"weights")
    outputs = (
        Output(id=path.name, sha256=hash_output(path)),
        Output(id="some/data-v0/data/metadata.json", sha256="0" * 64),
    )
    good = certificate(outputs=outputs)
    assert released_file(good, path).entries == ("a", "b")
    assert released_dataset(good, "some/data-v0").value == "some/data-v0"
    assert stated_answer(good).value is good
    for refused in (
        lambda: released_dataset(good, "some/data-v1"),
        lambda: released_dataset(certificate(status="invalid", outputs=outputs), "some/data-v0"),
        lambda: released_file(certificate(outputs=outputs[1:]), path),
        lambda: released_file(certificate(status="non_private", outputs=outputs), path),
        lambda: released_file(certificate(outputs=outputs, ledger_entries=()), path),
        lambda: stated_answer(certificate(ledger_entries=())),
    ):
        with pytest.raises(UnsafeError):
            refused()
    path.write_bytes(b"others")
    with pytest.raises(UnsafeError, match="not what its certificate states"):
        released_file(good, path)


def test_a_released_value_survives_copies():
    made = released(1.0, "e1")
    assert copy.deepcopy(made) == pickle.loads(pickle.dumps(made)) == made
