"""A process that feeds one door until its time is over; what it finds is in its folder.

Run by ``python -m tests.fuzz``: a file that ends the process is the last one in the folder.
"""

import argparse
import json
import os
import resource
import signal
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np

from tests.fuzz.targets import TARGETS, Target, mutated

INPUT, FOUND = "input", "found.json"
HANG_SECONDS = 60
MEMORY = 4 * 2**30


class Feeder:
    """Feeds a door and keeps count.

    Args:
        target: the door.
        folder: where the last input and the counts are kept.
        seconds: that it feeds.
    """

    def __init__(self, target: Target, folder: Path, seconds: float) -> None:
        self._target, self._folder = target, folder
        self._until = time.monotonic() + seconds
        self._outcomes: Counter[str] = Counter()
        self._defects: dict[str, str] = {}
        self._slowest = 0.0
        self._saved = time.monotonic()

    def feed(self, content: bytes) -> None:
        """Feed one input; ends the process when the time is over."""
        (self._folder / INPUT).write_bytes(content)
        begun = time.monotonic()
        signal.alarm(HANG_SECONDS)
        try:
            self._outcomes[self._target.outcome(content)] += 1
        except Exception as error:
            self._defects.setdefault(f"{type(error).__name__}: {error}"[:200], content.hex())
            self._outcomes["defect"] += 1
        signal.alarm(0)
        now = time.monotonic()
        self._slowest = max(self._slowest, now - begun)
        if now > self._until or now > self._saved + 5:
            self.save()
        if now > self._until:
            sys.stdout.flush()
            os._exit(0)

    def save(self) -> None:
        """Write what was found so far."""
        self._saved = time.monotonic()
        found = {
            "outcomes": dict(self._outcomes),
            "defects": self._defects,
            "slowest": self._slowest,
        }
        (self._folder / FOUND).write_text(json.dumps(found))


def _feed_by_coverage(feeder: Feeder, target: Target, corpus: Path, seed: int) -> None:
    import atheris

    corpus.mkdir(exist_ok=True)
    for number, content in enumerate(target.seeds):
        (corpus / f"seed-{number}").write_bytes(content)
    atheris.Setup(
        [sys.argv[0], f"-seed={seed + 1}", "-print_final_stats=0", str(corpus)], feeder.feed
    )
    atheris.Fuzz()


def main() -> None:
    """Feed a door; see the arguments."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.process")
    parser.add_argument("name", choices=TARGETS)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--coverage", action="store_true", help="by atheris")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (pages + MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(dir=given.folder) as work:
        target = TARGETS[given.name](Path(work))
        feeder = Feeder(target, given.folder, given.seconds)
        if given.coverage:
            _feed_by_coverage(feeder, target, given.folder / "corpus", given.seed)
        for content in mutated(target.seeds, np.random.default_rng(given.seed)):
            feeder.feed(content)


if __name__ == "__main__":
    main()
