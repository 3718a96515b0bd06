"""Runs of every method to which something happens at a random time."""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from distributed_privrl.core.random import Streams
from distributed_privrl.privacy.ledger import Ledger
from tests.chaos.faults import Fault, Struck, faults, small_file_system
from tests.chaos.keyed import ready_for_forks
from tests.chaos.methods import UNPROTECTED, WORLDS
from tests.chaos.outcomes import BEFORE, BrokenError, Record, Row, told
from tests.chaos.places import Place, enter, verify_place, waited
from tests.chaos.records import lost_rounds

MOST_CALLS = 4
SPENT_CODES = (3, 4)
SPENT = "stays charged and cannot go on"
"""What a run says that was killed between a charge and its only answer: it is spent, and ends."""
UNKNOWN = ("Traceback", "unexpected error:")


def disturb(place: Place, fault: Fault, share: float) -> Row:
    """Let something happen to a run, go on until it has ended, and check what it left.

    Args:
        place: of the method.
        fault: what happens.
        share: of an undisturbed run, after which it does.

    Returns:
        when it happened, how the run ended, and in how many further calls.

    Raises:
        BrokenError: it did not, or what it left does not hold.
    """
    due = place.due(fault, share)
    place.fresh()
    world = place.bench.world
    with contextlib.ExitStack() as stack:
        if fault.place:
            stack.enter_context(small_file_system(world / fault.place))
        struck = Struck(place.start(fault), world)
        code, hit = place.hold(struck.pid, fault, due), False
        while code is None:
            try:
                there = fault.strike(struck)
            except BaseException:
                waited(struck.pid)
                raise
            if there is False:  # it ended meanwhile, and the next one is waited for
                code = place.hold(struck.pid, fault, due)
            else:
                code = waited(struck.pid)
                hit = code in fault.codes  # else it had ended just before
        said = place.bench.log.read_text()
        _check_said(fault, code, said, begun=(place.run / "config.yaml").exists())
        if fault.gone:
            _check_refused(place, fault, struck, ended=code == 0)
        fault.mend(struck)
        place.check_whole_or_absent()
        calls = 0
        while code and calls < MOST_CALLS and SPENT not in said:
            place.bench.log.unlink(missing_ok=True)
            code, calls = place.call(fault), calls + 1
            said = place.bench.log.read_text()
        spent = code in SPENT_CODES and SPENT in said
        if code and not spent:
            raise BrokenError(f"exit {code}: {said.strip()[-400:]}")
        verify_place(place, spent=spent)
        place.check_after()
    enter(world)
    with contextlib.closing(Ledger()) as ledger:
        lost = lost_rounds(ledger)
    ended = "spent" if spent else "--resume" if calls else "by itself" if hit else BEFORE
    return {place.unit: round(due, 2), "ended": ended, "calls": calls, "lost": lost}


def _check_said(fault: Fault, code: int, said: str, *, begun: bool) -> None:
    if unknown := [said.index(one) for one in UNKNOWN if one in said]:
        raise BrokenError(f"{fault.name}: {said[max(0, min(unknown) - 200) :][:1600]}")
    spent = code in SPENT_CODES and SPENT in said
    if code not in (0, *fault.codes) and not spent:
        raise BrokenError(f"{fault.name}: exit {code}: {said.strip()[-400:]}")
    if code in (7, 130) and begun and "--resume" not in said:
        raise BrokenError(f"{fault.name}: no word of --resume: {said.strip()[-400:]}")


def _check_refused(place: Place, fault: Fault, struck: Struck, *, ended: bool) -> None:
    """Check that no run goes on, and no ledger is made, where the ledger is gone."""
    if ended or not struck.aside.exists():
        return
    size = struck.ledger.stat().st_size if struck.ledger.exists() else None
    if (code := place.call(fault)) != 7:
        raise BrokenError(f"{fault.name}: exit {code} without a ledger")
    if size != (struck.ledger.stat().st_size if struck.ledger.exists() else None):
        raise BrokenError(f"{fault.name}: a ledger was made again")


def disturbances(
    work: Path,
    *,
    seed: int,
    until: float,
    methods: Sequence[str] = tuple(WORLDS),
    named: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield what came of each fault of each method; those in the record are not repeated.

    Each method meets each fault once, at a time of its own; all methods take turns.

    Args:
        work: folder of worlds and the record.
        seed: of the times.
        until: of the monotonic clock; later nothing is disturbed any more.
        methods: their names.
        named: faults; None: all.
    """
    record = Record(work / "outcomes.jsonl", "method", "fault")
    streams = Streams(seed)
    all_faults = [fault for fault in faults() if named is None or fault.name in named]
    places: dict[str, Place] = {}
    ready_for_forks()
    for turn in range(len(all_faults)):
        for index, method in enumerate(methods):
            fault = all_faults[(turn + index) % len(all_faults)]
            if method in UNPROTECTED and "ledger" in fault.name:
                continue
            share = float(streams.numpy(f"{method} {fault.name}").uniform(0.02, 0.9))
            place = places.setdefault(method, Place(method, work / method))
            row = record.once(
                {"method": method, "fault": fault.name, "share": share},
                partial(disturb, place, fault, share),
                until=until,
            )
            if row is not None:
                yield row


def fault_cells(
    work: Path, *, seed: int, until: float, methods: Sequence[str] = tuple(WORLDS)
) -> list[Row]:
    """Disturb methods by every fault; return a row of the table for each fault.

    Args:
        work: folder of worlds and the record.
        seed: of the times.
        until: of the monotonic clock; later nothing is disturbed any more.
        methods: their names.
    """
    unpaid = len(UNPROTECTED.intersection(methods))
    return told(
        disturbances(work, seed=seed, until=until, methods=methods),
        planned=lambda name: len(methods) - ("ledger" in name and unpaid),
    )
