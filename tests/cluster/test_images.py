"""Dockerfile and docker-compose, as far as they can be checked without Docker."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

FOLDER = Path(__file__).parents[2] / "cluster"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
COMPOSE: dict[str, Any] = yaml.safe_load((FOLDER / "docker-compose.yaml").read_text())


def test_the_image_has_two_stages_installs_from_the_lock_and_is_not_root() -> None:
    stages = DOCKERFILE.split("\nFROM ")
    assert len(stages) == 3  # what is said before, and two stages
    assert "pip install --no-cache-dir -c requirements.lock" in stages[1]
    assert re.search(r"^USER 1000:1000$", stages[2], re.MULTILINE)
    assert "pip" not in stages[2]
    assert "--shm-size" in stages[0]
    for source in re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE):
        for name in source.split():
            assert (FOLDER.parent / name).exists(), f"{name} is not in the repository"


@pytest.mark.parametrize("name", sorted(COMPOSE["services"]))
def test_a_service_is_pinned_and_its_passwords_are_files(name: str) -> None:
    service = COMPOSE["services"][name]
    tag = service["image"].partition(":")[2]
    assert re.search(r"\d", tag), f"{service['image']} names no version"
    environment = service.get("environment", {})
    for key, value in environment.items():
        secret = re.search("PASSWORD|TOKEN|PASS", key)
        if secret:
            path = Path(value)
            assert value.startswith("/run/secrets/"), key
            assert path.name in service["secrets"]
    assert {*service.get("secrets", [])} <= {*COMPOSE["secrets"]}
    assert all(set(one) == {"file"} for one in COMPOSE["secrets"].values())
    assert "ports" not in service, "whoever reaches this machine would reach it"


@pytest.mark.parametrize("name", ["head", "worker"])
def test_ray_runs_as_a_user_with_a_token_and_shared_memory(name: str) -> None:
    service = COMPOSE["services"][name]
    assert service["user"] == "1000:1000"
    assert service["shm_size"] == "2gb"
    assert service["environment"]["RAY_AUTH_MODE"] == "token"
    assert service["environment"]["PRIVRL_LEDGER"].count(":") == 1  # no password


def test_the_head_spills_nothing() -> None:
    command = COMPOSE["services"]["head"]["command"]
    assert '--system-config={"automatic_object_spilling_enabled": false}' in command
    assert "--num-cpus=0" in command
