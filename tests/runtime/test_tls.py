"""Ray's TLS: files that can work, and a cluster that speaks to nobody without a certificate."""

from pathlib import Path

import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.runtime import session
from distributed_privrl.runtime.tls import AUTHORITY, CERTIFICATE, KEY, SWITCH, check_tls
from tests.worlds.authority import tls_environment


def test_files_that_belong_together_pass(tmp_path: Path) -> None:
    assert check_tls(tls_environment(tmp_path))
    assert not check_tls({})
    assert not check_tls({SWITCH: "0"})


@pytest.mark.parametrize("name", [CERTIFICATE, KEY, AUTHORITY])
def test_a_file_that_is_missing_is_named(tmp_path: Path, name: str) -> None:
    given = tls_environment(tmp_path)
    with pytest.raises(ConfigError, match=f"{SWITCH}=1 needs {name}"):
        check_tls({key: value for key, value in given.items() if key != name})
    with pytest.raises(ConfigError, match=f"no file at {name}"):
        check_tls(given | {name: str(tmp_path / "nowhere")})


def test_files_without_the_switch_are_no_tls(tmp_path: Path) -> None:
    given = tls_environment(tmp_path)
    for switch in ({SWITCH: "0"}, {SWITCH: ""}, {SWITCH: "yes"}):
        with pytest.raises(UnsafeError, match="Ray would not encrypt"):
            check_tls(given | switch)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    given = tls_environment(tmp_path)
    Path(given[KEY]).chmod(0o640)
    with pytest.raises(UnsafeError, match="chmod 600"):
        check_tls(given)


def test_a_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    given, other = tls_environment(tmp_path / "a"), tls_environment(tmp_path / "b")
    with pytest.raises(ConfigError, match="are no certificate, its key and its authority"):
        check_tls(given | {KEY: other[KEY]})
    Path(given[AUTHORITY]).write_text("no certificate")
    with pytest.raises(ConfigError, match="are no certificate, its key and its authority"):
        check_tls(given)


def test_ray_is_not_started_with_tls_that_cannot_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "1")
    with pytest.raises(ConfigError, match=f"needs {CERTIFICATE}"):
        session.connect()
