"""Which series Prometheus keeps."""

import re
from pathlib import Path

import yaml

FOLDER = Path(__file__).parents[2] / "cluster"


def kept() -> re.Pattern[str]:
    (job,) = yaml.safe_load((FOLDER / "prometheus.yaml").read_text())["scrape_configs"]
    (rule,) = job["metric_relabel_configs"]
    assert (rule["action"], rule["source_labels"]) == ("keep", ["__name__"])
    return re.compile(rule["regex"])
