"""A cluster with TLS: who has a certificate of its authority is answered, nobody else is."""

import subprocess
import sys
from pathlib import Path

import pytest

from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.runtime import session
from tests.cluster.nodes import local_nodes, outside
from tests.runtime.heads import head
from tests.worlds.authority import tls_environment

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]
JOIN = """
from distributed_privrl.runtime.session import connect
ray = connect()
print(ray.get(ray.remote(num_cpus=1)(lambda: 6 * 7).remote(), timeout=200))
"""


def test_a_cluster_with_tls_answers_who_has_a_certificate_and_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = tls_environment(tmp_path / "ours"), tls_environment(tmp_path / "theirs")
    token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    with head(tmp_path, **token, **ours) as address:
        for given in ({}, theirs):
            with monkeypatch.context() as patch:
                for name, value in given.items():
                    patch.setenv(name, value)
                with pytest.raises(UnsafeError, match="cannot be told"):
                    session.check_token_needed(address)
        for name, value in ours.items():
            monkeypatch.setenv(name, value)
        session.check_token_needed(address)


def test_nodes_with_tls_compute_for_who_has_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.util import get_node_ip_address  # settles the mode of tokens where it is imported

    # Ray's head takes the machine's own address, whatever it is told: the certificate names both.
    given = tls_environment(tmp_path, get_node_ip_address())
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with local_nodes(nodes=1) as cluster:
        answers = [
            subprocess.run(
                [sys.executable, "-c", JOIN],
                env=outside(cluster.variables | own),
                capture_output=True,
                text=True,
                timeout=240,
                check=False,
            )
            for own in (given, {})
        ]
    assert answers[0].stdout.strip() == "42", answers[0].stderr
    assert answers[1].returncode
    assert "UnsafeError" in answers[1].stderr
