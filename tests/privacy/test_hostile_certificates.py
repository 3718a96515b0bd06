"""Certificates that were written to harm: refused in one line, within bounds."""

import json
import time

import pytest

from distributed_privrl.core.errors import VerificationError
from distributed_privrl.privacy.certificate import digest_of
from distributed_privrl.privacy.verification import MOST_BYTES, MOST_EVENTS, verify_certificate
from tests.privacy.stages import certificate
from tests.worlds.bounded import bounded

ROUND = {
    "kind": "poisson_gaussian",
    "sampling_probability": 0.01,
    "noise_multiplier": 3.0,
    "count": 5,
}


def with_events(values, events):
    stages = [{**values["stages"][1], "events": events}]
    return {**values, "stages": stages}


def nested(depth):
    event = ROUND
    for _ in range(depth):
        event = {"kind": "parallel", "branches": [[event]]}
    return [event]


def output(name):
    return lambda values: {**values, "outputs": [{"id": name, "sha256": "0" * 64}]}


HOSTILE = {
    "an output with a zero byte": (output("a\0b"), "no control characters"),
    "an output of 100,000 characters": (output("a" * 100_000), "255 bytes a name"),
    "an output of many folders": (output("a/" * 600 + "b"), "1024 characters"),
    "an output elsewhere": (output("../../etc/passwd"), "points outside"),
    "an absolute output": (output("/etc/passwd"), "points outside"),
    "events in events": (lambda values: with_events(values, nested(100)), "within each other"),
    "many different events": (
        lambda values: with_events(
            values, [{**ROUND, "noise_multiplier": 1 + i / 999} for i in range(MOST_EVENTS + 1)]
        ),
        "different events",
    ),
    "many choices": (
        lambda values: with_events(
            values, [{"kind": "parallel", "branches": [[ROUND], [ROUND]]}] * 20
        ),
        "choices of branches",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_certificate_is_refused_in_one_line_within_bounds(tmp_path, name):
    change, message = HOSTILE[name]
    values = change(certificate().to_dict())
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps({**values, "digest": digest_of(values)}))
    with bounded(), pytest.raises(VerificationError, match=message) as caught:
        verify_certificate(path)
    assert "\n" not in str(caught.value)


def test_a_certificate_that_takes_long_to_recompute_is_refused(tmp_path, monkeypatch):
    """256 different private rounds take a minute of the processor; a second is given here."""
    monkeypatch.setattr("distributed_privrl.privacy.verification.MOST_SECONDS", 1.0)
    rounds = [{**ROUND, "noise_multiplier": 1 + i / 999} for i in range(MOST_EVENTS)]
    values = with_events(certificate().to_dict(), rounds)
    path = tmp_path / "certificate.json"
    path.write_text(json.dumps({**values, "digest": digest_of(values)}))
    begun = time.thread_time()
    with pytest.raises(VerificationError, match="take too long to compose") as caught:
        verify_certificate(path)
    assert time.thread_time() - begun < 15
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["[" * 10**5, '{"a": 1e999}', '{"schema": 1}', "9" * 10**5, "\0"])
def test_what_is_no_certificate_is_refused(tmp_path, text):
    (tmp_path / "certificate.json").write_text(text)
    with bounded(), pytest.raises(VerificationError):
        verify_certificate(tmp_path / "certificate.json")


def test_a_large_file_is_not_read_whole(tmp_path):
    path = tmp_path / "certificate.json"
    with path.open("wb") as file:
        file.truncate(2**36)
    with bounded(), pytest.raises(VerificationError, match=f"more than {MOST_BYTES} bytes"):
        verify_certificate(path)
