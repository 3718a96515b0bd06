"""Where a method's runs are disturbed again and again, and what must hold once one has ended."""

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from distributed_privrl.data.store import FOLDER_VARIABLE, DatasetStore
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import read_certificate
from tests.chaos.faults import Fault
from tests.chaos.keyed import ready
from tests.chaos.methods import GOES_ON_WITHOUT, UNPROTECTED, parameters_of, prepared
from tests.chaos.operations import Bench
from tests.chaos.outcomes import BrokenError
from tests.chaos.points import cpu_seconds, exit_code, forked, in_child
from tests.chaos.records import check_draws, double_replies, lost_rounds
from tests.chaos.scenarios import Scenario, check_nothing_is_left, privrl

RUN = ("run", "{world}/run.yaml", "--out", "{world}/out/run")
MOST_SECONDS = 1800.0
"""How long a run may take on a busy machine; one that hangs takes longer."""
NOT_VERIFIED = 6
"""What ``certificate verify`` ends with where no certificate can be valid."""
ELSEWHERE = """
import sys
from pathlib import Path
from tests.chaos.keyed import ready
from distributed_privrl.cli import main
ready(Path(sys.argv.pop(1)))
main()
"""


def enter(world: Path) -> None:
    """Let this process's datasets and ledger be those of ``world``."""
    os.environ[FOLDER_VARIABLE] = str(world / "datasets")
    os.environ["PRIVRL_LEDGER"] = f"sqlite:///{world / 'ledger' / 'ledger.sqlite'}"


class Place:
    """Where one method is disturbed again and again, always under the same path.

    Args:
        method: its name.
        work: a folder of its own.
    """

    unit = "seconds"
    """What a run's progress is counted in: here what it computes."""

    def __init__(self, method: str, work: Path) -> None:
        work.mkdir(parents=True, exist_ok=True)
        scenario = Scenario(
            name=method, prepare=prepared(method), command=RUN, check=self.check, resumes=True
        )
        self.bench = Bench(scenario=scenario, work=work)
        self.draws = work / "draws.jsonl"
        self.reference = work / "reference.json"
        self._warmed = False

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.bench.world / "out" / "run"

    def _parameters(self) -> str:
        return parameters_of(self.run, self.bench.world / "datasets")

    def fresh(self) -> None:
        """Bring the world back to what it was before the run."""
        self.bench.fresh()
        self.draws.unlink(missing_ok=True)

    def start(self, fault: Fault | None = None) -> int:
        """Begin the run, or go on with it, in a fork; return its id."""

        def work() -> None:
            for one, handler in (
                (signal.SIGINT, signal.default_int_handler),
                (signal.SIGTERM, signal.SIG_DFL),
                (signal.SIGHUP, signal.SIG_DFL),
            ):
                signal.signal(one, handler)
            self.prepare(fault)
            privrl(self.bench.world, *self._arguments, entered=enter)

        return forked(work, log=self.bench.log)

    def prepare(self, fault: Fault | None) -> None:
        """Make this process one whose runs can be checked, and begin what a fault is from then."""
        ready(self.draws)
        if fault is not None and fault.before == "doubled":
            double_replies(os.getpid())

    def due(self, fault: Fault, share: float) -> float:
        """Return when a fault is due, in `unit`.

        Args:
            fault: what is due.
            share: of an undisturbed run, after which it is.
        """
        return share * self.measure()

    def hold(self, pid: int, fault: Fault, due: float) -> int | None:
        """Wait until a fault is due; return the run's exit code if it ended before.

        Args:
            pid: of the run.
            fault: what is due.
            due: when it is.
        """
        return exit_at(pid, due)

    def check_after(self) -> None:
        """Check what is around a run that has ended."""

    @property
    def _arguments(self) -> list[str]:
        more = ["--resume"] if (self.run / "config.yaml").exists() else []
        return [*self.bench.scenario.arguments(self.bench.world), *more]

    def call(self, fault: Fault) -> int:
        """Go on with the run until it ends, and return its exit code."""
        if not fault.again:
            return waited(self.start())
        enter(self.bench.world)
        with self.bench.log.open("ab") as log:
            return subprocess.run(
                [*fault.again, sys.executable, "-c", ELSEWHERE, str(self.draws), *self._arguments],
                stdout=log,
                stderr=log,
                check=False,
                timeout=MOST_SECONDS,
            ).returncode

    def measure(self) -> float:
        """Run undisturbed, twice if it never was; return the seconds that a run computes."""
        if self._warmed:
            return float(json.loads(self.reference.read_text())["seconds"])
        self._warm()
        digests = {self._parameters()}
        self.fresh()
        pid, seconds = self.start(), 0.0
        while (code := exit_code(pid, block=False)) is None:
            seconds = cpu_seconds(pid)
            time.sleep(0.01)
        if code:
            raise BrokenError(f"undisturbed: {self.bench.log.read_text()}")
        digests.add(self._parameters())
        if len(digests) > 1:
            raise BrokenError("two undisturbed runs differ: nothing can be compared")
        self.reference.write_text(json.dumps({"seconds": seconds, "digest": digests.pop()}))
        self._warmed = True
        return seconds

    def _warm(self) -> None:
        """Run and verify once in this process, so that forks find modules and epsilons there."""
        self.fresh()
        enter(self.bench.world)
        verify = ("certificate", "verify", str(self.run / "certificate.json"))
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(self.bench.log.open("w"))
            stack.enter_context(contextlib.redirect_stdout(file))
            stack.enter_context(contextlib.redirect_stderr(file))
            for words in (self._arguments, verify):
                with contextlib.suppress(SystemExit):
                    privrl(self.bench.world, *words, entered=enter)

    def check(self, world: Path, *, spent: bool = False) -> None:
        """Check what a run left that has ended, or, if it is ``spent``, never will.

        Raises:
            AssertionError: something does not hold.
        """
        enter(world)
        with contextlib.closing(Ledger()) as ledger:
            check_draws(self.draws, ledger)
            for account in ledger.accounts():
                assert account.spent_epsilon <= account.epsilon * (1 + 1e-9)
            entries = GOES_ON_WITHOUT.get(self.bench.scenario.name)
            lost = 0 if entries is None else lost_rounds(ledger, entries)
        certificate = self.run / "certificate.json"
        if spent:
            assert not certificate.exists()
            return
        log, url = world / "verify.log", os.environ["PRIVRL_LEDGER"]
        words = ("certificate", "verify", str(certificate), "--ledger", url)
        code = in_child(lambda: privrl(world, *words, entered=enter), log=log)
        protected = self.bench.scenario.name not in UNPROTECTED
        assert code == (0 if protected else NOT_VERIFIED), log.read_text()
        assert read_certificate(certificate).status == ("valid" if protected else "non_private")
        if not lost:
            assert self._parameters() == json.loads(self.reference.read_text())["digest"]
        check_nothing_is_left(world)

    def check_whole_or_absent(self) -> None:
        """Check that what lies in the store can be read: nothing there is half a release."""
        store = DatasetStore(self.bench.world / "datasets")
        for dataset in store.ids():
            store.info(dataset)


def exit_at(pid: int, seconds: float) -> int | None:
    """Wait until a fork has computed for some seconds; return its exit code if it ended before.

    Raises:
        BrokenError: it neither computes nor ends.
    """
    end = time.monotonic() + MOST_SECONDS
    while (code := exit_code(pid, block=False)) is None and cpu_seconds(pid) < seconds:
        if time.monotonic() > end:
            os.kill(pid, signal.SIGKILL)
            exit_code(pid)
            raise BrokenError(f"no end after {MOST_SECONDS:g} s")
        time.sleep(0.005)
    return code


def waited(pid: int) -> int:
    """Wait for a fork and return its exit code.

    Raises:
        BrokenError: it does not end.
    """
    code = exit_at(pid, math.inf)
    assert code is not None
    return code


def verify_place(place: Place, *, spent: bool) -> None:
    """Check what a run left, in a process of its own; see `Place.check`.

    Raises:
        BrokenError: something does not hold.
    """
    log = place.bench.work / "check.txt"
    log.unlink(missing_ok=True)
    if in_child(lambda: place.check(place.bench.world, spent=spent), log=log):
        raise BrokenError(log.read_text().strip()[-600:])
