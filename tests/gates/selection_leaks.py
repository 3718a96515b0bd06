"""Gates on private selection: one charge, before the draw, and no word of how many there were."""

import json
from collections.abc import Sequence
from pathlib import Path

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.labels import column_labels
from distributed_privrl.evaluation.fidelity import fidelity
from distributed_privrl.experiments.samples import sampled_rows
from distributed_privrl.privacy.ledger import LedgerEntry
from distributed_privrl.privacy.reservations import TOLERANCE
from distributed_privrl.privacy.verification import verify_certificate
from tests.gates.selection_runs import Seen, forms, numbers, watched_selection
from tests.worlds.choosing import JUDGE
from tests.worlds.intake import RELEASED

FEW, MORE, MANY = 1, 23, 57
"""Numbers of trials that are met by chance nowhere, beside the least one."""
CLOCK_SECONDS = 0.02
"""By which a file system's clock may be late."""
NEAR = 2
"""How far a number may be from that of trials and still tell it: of losers, of failures."""


def gate_selection_tells_nothing(folder: Path) -> None:
    """Whatever the number of trials, what can be read afterwards is the same in form.

    Selections of `FEW`, `MORE` and `MANY` trials, of which two at most have a score, and of none
    and many trials without any score.
    """
    won = [_won(folder / str(count), count) for count in (FEW, MORE)]
    _check_forms(won)
    won.append(_won(folder / str(MANY), MANY))
    _check_forms(won)
    _check_numbers(won)
    _check_forms([_lost(folder / f"no-{count}", count) for count in (0, MORE)])


def _won(folder: Path, count: int) -> Seen:
    seen = watched_selection(folder, count, fails=lambda number: number not in (0, count - 1))
    _check_one(seen)
    _check_release(seen)
    return seen


def _lost(folder: Path, count: int) -> Seen:
    law = {"selection__law": "poisson"}
    seen = watched_selection(folder, count, fails=lambda number: True, **law)
    _check_one(seen)
    assert seen.result is not None
    assert seen.result.certificate is None, "something was released of nothing"
    assert not (seen.world.store.root / RELEASED).exists(), "something was released of nothing"
    return seen


def _check_one(seen: Seen) -> None:
    """Check what holds for each selection alone."""
    if seen.ended is not None:
        raise seen.ended
    assert len(seen.charged_at_draw) == 1, "the number of trials is drawn once"
    assert len(seen.charged_at_draw[0]) == 1, "the charge comes before the draw"
    assert seen.tried == seen.count, "a trial that failed was drawn again"
    assert "trial 0" not in seen.said, "a trial was heard"
    (entry,) = _entries(seen)
    assert (entry.status, entry.reserved_rounds) == ("settled", 1)
    assert entry.event["kind"] == "repeat_and_select"
    assert seen.result is not None
    assert seen.result.epsilon == entry.epsilon
    left = [str(path) for path in seen.world.memory.rglob("*")]
    assert not left, f"losers are left: {left}"


def _entries(seen: Seen) -> list[LedgerEntry]:
    entries = seen.world.ledger.entries()
    assert len(entries) == 1, f"the ledger has {len(entries)} entries, not one"
    return entries


def _check_release(seen: Seen) -> None:
    """Check score and certificate against what was released, public rows and the ledger."""
    world, run = seen.world, seen.world.folder / "run"
    told = json.loads((run / "selection.json").read_text())
    released, judge = (sampled_rows(world.store, one) for one in (RELEASED, JUDGE))
    found = fidelity(judge, released, column_labels(world.store.info(JUDGE)))
    again = (found.marginal + found.correlation) / 2
    assert told["score"] == again, "the score is not that of released and public rows"
    verified = verify_certificate(
        run / "certificate.json", ledger=world.ledger, outputs_root=world.store.root
    )
    _check_times(seen)
    (stage,) = verified.certificate.stages
    assert [event.kind for event in stage.events] == ["repeat_and_select"]
    (entry,) = _entries(seen)
    assert verified.certificate.ledger_entries == (entry.id,)
    assert abs(verified.epsilon - entry.epsilon) <= TOLERANCE * entry.epsilon


def _check_times(seen: Seen) -> None:
    """Check that no file of the run's folder or the dataset is older than the last trial's end."""
    places = (seen.world.folder / "run", seen.world.store.root / RELEASED)
    old = [
        str(path)
        for place in places
        for path in (place, *place.rglob("*"))
        if path.stat().st_mtime < seen.over - CLOCK_SECONDS
    ]
    assert not old, f"the time of {old} tells how long trials took"


def _check_forms(runs: Sequence[Seen]) -> None:
    """Check that all that can be read is the same but for numbers."""
    first, *others = [forms(one.texts) for one in runs]
    for one in others:
        assert set(one) == set(first), f"files tell: {set(one) ^ set(first)}"
        for where, text in first.items():
            assert one[where] == text, f"{where} tells how many trials there were"


def _check_numbers(runs: Sequence[Seen]) -> None:
    """Check that no number goes with the trials'."""
    counts, every = [one.count for one in runs], [numbers(one.texts) for one in runs]
    for where, own in every[0].items():
        for place in range(len(own)):
            differences = {
                found[where][place] - count for found, count in zip(every, counts, strict=True)
            }
            told = len(differences) == 1 and abs(differences.pop()) <= NEAR
            assert not told, f"{where} holds the number of trials"


def gate_interrupted_selection_is_spent(folder: Path) -> None:
    """A selection that is interrupted has paid, has released nothing, and does not go on."""
    before: list[LedgerEntry] = []

    def check(seen: Seen) -> None:
        assert isinstance(seen.ended, KeyboardInterrupt)
        before.append(_check_spent(seen))

    seen = watched_selection(
        folder, MORE, fails=lambda number: number > 0, interrupts=4, between=check
    )
    assert len(seen.charged_at_draw) == 1, "an interrupted selection went on"
    assert isinstance(seen.ended, ConfigError), "an interrupted selection went on"
    assert "does not go on" in str(seen.ended)
    assert [_check_spent(seen)] == before


def _check_spent(seen: Seen) -> LedgerEntry:
    (entry,) = _entries(seen)
    assert entry.status == "open"
    assert entry.reserved_rounds == 1
    (account,) = seen.world.ledger.accounts()
    assert account.spent_epsilon == entry.epsilon > 0
    assert seen.world.ledger.answer(entry.id) is None, "an interrupted selection has an answer"
    files = set(seen.files)
    assert not any(RELEASED in one for one in files), "an interrupted selection released something"
    kept = {one for one in files if one.startswith("run/")}
    assert kept == {"run/checkpoint/run.json", "run/sweep.yaml"}, "a trial left a file"
    assert not list(seen.world.memory.rglob("*")), "losers are left"
    return entry
