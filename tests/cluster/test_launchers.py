"""The launchers' files: Ray's own checks, and stricter ones; no cloud was asked."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from tests.cluster.launchers import NODES

FOLDER = Path(__file__).parents[2] / "cluster"
SPILLING = """--system-config='{"automatic_object_spilling_enabled": false}'"""


@pytest.fixture(params=sorted(NODES))
def launcher(request: pytest.FixtureRequest) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((FOLDER / f"{request.param}.yaml").read_text())
    return loaded


def check(launcher: dict[str, Any]) -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(copy.deepcopy(launcher)))


def test_ray_takes_them(launcher: dict[str, Any]) -> None:
    check(launcher)
    with pytest.raises(Exception, match="max_wokers"):
        check({**launcher, "max_wokers": 3})


def test_workers_are_spot_from_none_and_the_head_is_not(launcher: dict[str, Any]) -> None:
    model, types = NODES[launcher["provider"]["type"]], launcher["available_node_types"]
    nodes = {name: model.model_validate(one["node_config"]) for name, one in types.items()}
    assert {name: node.spot for name, node in nodes.items()} == {
        "head": False,
        "cpu": True,
        "gpu": True,
    }
    assert launcher["head_node_type"] == "head"
    assert [types[name]["min_workers"] for name in ("cpu", "gpu")] == [0, 0]
    assert [types[name]["resources"].get("GPU", 0) for name in types] == [0, 0, 1]
    assert types["head"]["resources"] == {"CPU": 0}


def test_a_typing_error_that_ray_lets_pass_is_found(launcher: dict[str, Any]) -> None:
    config = launcher["available_node_types"]["cpu"]["node_config"]
    config["InstanceTyp"] = "m6i.large"
    check(launcher)  # Ray takes it
    with pytest.raises(ValidationError, match="InstanceTyp"):
        NODES[launcher["provider"]["type"]].model_validate(config)


def test_every_node_has_a_token_that_its_owner_alone_reads(launcher: dict[str, Any]) -> None:
    assert launcher["file_mounts"]["~/.ray/auth_token"] == "~/.ray/auth_token"
    secrets = ["~/.ray/auth_token", "~/.pgpass", "~/.privrl_row_key"]
    assert launcher["file_mounts"].items() >= {one: one for one in secrets}.items()
    assert f"chmod 600 {' '.join(secrets)}" in launcher["setup_commands"]
    for which in ("head", "worker"):
        start = launcher[f"{which}_start_ray_commands"][-1]
        assert "RAY_AUTH_MODE=token" in start
        assert "PRIVRL_LEDGER_KEY=$HOME/.privrl_row_key" in start
        assert "ray start" in start
    head = launcher["head_start_ray_commands"][-1]
    for word in (SPILLING, "--num-cpus=0", "--dashboard-host=127.0.0.1"):
        assert word in head


def test_nodes_install_from_the_lock_and_get_no_data(launcher: dict[str, Any]) -> None:
    installs = [
        command
        for command in launcher["setup_commands"] + launcher["head_setup_commands"]
        if "pip install" in command
    ]
    assert any("-c ~/privrl/requirements.lock" in command for command in installs)
    assert all("==" in command or "requirements.lock" in command for command in installs)
    assert {".git", "runs", "**/private", "**/*.sqlite"} <= {*launcher["rsync_exclude"]}
