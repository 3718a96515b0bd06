"""The benchmark of nodes that come and go, at its smallest scale."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.nodes import outside

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1200)]


def test_nodes_come_and_go_while_somebody_counts_the_seconds(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "benchmarks.node_changes", "--scale", "quick"]
    done = subprocess.run(
        [*words, "--out", str(tmp_path)],
        env=outside({}),
        capture_output=True,
        text=True,
        check=False,
        timeout=1100,
    )
    assert done.returncode == 0, done.stderr
    saved = json.loads((tmp_path / "node_changes.json").read_text())
    turns = {row["a node"]: len(row["s until all parts are answered"]) for row in saved["cells"]}
    assert turns == {"joins": 2, "is killed": 1, "falls silent": 1}
    ratios = saved["ratios"]
    assert min(ratios.values()) > 0
    # Broken connections are noticed at once, a silence after Ray has asked for some time.
    assert ratios["seconds_silent"] > ratios["seconds_killed"]
