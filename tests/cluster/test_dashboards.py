"""Prometheus keeps what a run shows and no series of Ray that times private rounds."""

import json
import re

import pytest

from distributed_privrl.runtime.metrics import GAUGES
from tests.cluster.keeping import FOLDER, kept

OURS = {f"ray_privrl_{name}" for name in GAUGES}


@pytest.mark.parametrize("name", sorted(OURS))
def test_our_gauges_are_kept(name: str) -> None:
    assert kept().fullmatch(name)


@pytest.mark.parametrize(
    "name",
    ["ray_tasks", "ray_actors", "ray_component_rss_mb", "ray_node_cpu_utilization"],
)
def test_what_counts_calls_or_shows_load_is_dropped(name: str) -> None:
    assert not kept().fullmatch(name)


def test_the_dashboard_shows_what_is_kept_and_no_rate() -> None:
    panels = json.loads((FOLDER / "grafana.json").read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    names = {name for one in asked for name in re.findall(r"ray_\w+", one)}
    assert names >= OURS
    assert all(kept().fullmatch(name) for name in names)
    assert not any(re.search(r"rate|increase|delta|deriv", one) for one in asked)
