import io
import re

import pytest
from rich.console import Console
from rich.progress import Progress as Bars

from distributed_privrl.cli import progress as module
from distributed_privrl.cli.progress import PlainProgress, TimeColumn, is_timed, shown_progress
from distributed_privrl.stages.training import STAGE

ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def clock(monkeypatch):
    """A clock that goes on by 7 seconds whenever it is read."""
    seconds = iter(range(0, 10_000, 7))
    monkeypatch.setattr(module.time, "monotonic", lambda: float(next(seconds)))


def test_only_stages_that_read_no_sensitive_row_are_timed():
    assert not is_timed(STAGE)
    for stage in ("inspecting data", "counting units", "something new", "report"):
        assert not is_timed(stage)
    for stage in ("collecting maze2d-umaze", "public pre-training", "sampling", "training agents"):
        assert is_timed(stage)


def test_plain_private_rounds_show_round_and_note_alone(clock, capsys):
    progress = PlainProgress()
    for done in range(0, 41):
        progress(STAGE, done, 40, f"epsilon reserved {done}")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.splitlines() == [
        f"{STAGE} {done}/40, epsilon reserved {done}" for done in (0, 1, *range(4, 41, 4))
    ]


def test_the_first_hundredth_of_a_long_stage_is_a_line(capsys):
    progress = PlainProgress()
    for done in range(0, 2001):
        progress(STAGE, done, 20_000)
    shown = capsys.readouterr().err.splitlines()
    assert shown == [f"{STAGE} {done}/20000" for done in (0, 200, 2000)]


def test_plain_public_stage_shows_seconds(clock, capsys):
    progress = PlainProgress()
    progress("sampling", 0, 2)
    progress("sampling", 2, 2)
    assert re.fullmatch(r"sampling 0/2\nsampling 2/2, \d+ s\n", capsys.readouterr().err)


def test_what_ends_after_the_last_step_is_told(capsys):
    progress = PlainProgress()
    for done, agents in ((0, 0), (1, 0), (2, 0), (2, 1), (2, 1)):
        progress("agents", done, 2, f"agents done {agents}/1")
    lines = capsys.readouterr().err.splitlines()
    assert lines[-2:] == ["agents 2/2, agents done 0/1", "agents 2/2, agents done 1/1"]
    assert len(lines) == 4


def test_plain_empty_stage_is_done_at_once(capsys):
    PlainProgress()("sampling", 0, 0)
    assert capsys.readouterr().err == "sampling 0/0\n"


def drawn_on_a_terminal(*stages):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=120)
    with shown_progress(console) as progress:
        for stage, note in stages:
            for done in range(5):
                progress(stage, done, 10, note)
    return re.split(r"[\r\n]+", ANSI.sub("", stream.getvalue()))


def test_bars_of_private_rounds_show_no_time():
    lines = drawn_on_a_terminal((STAGE, "epsilon reserved 1.5"), ("public pre-training", ""))
    private = [line for line in lines if line.startswith(STAGE)]
    assert private
    for line in private:
        assert re.fullmatch(rf"{STAGE} +\S* +\d/10 +epsilon reserved 1\.5 *", line), line
    public = [line for line in lines if line.startswith("public pre-training")]
    assert any(re.search(r"4/10 \S+/s \d+ s left", line) for line in public), public


def test_rate_is_known_for_private_rounds_and_still_not_shown():
    seconds = iter(range(100))
    bars = Bars(get_time=lambda: float(next(seconds)))
    for stage, timed in ((STAGE, False), ("sampling", True)):
        bars.add_task(stage, total=10, note="")
        task = bars.tasks[-1]
        for done in (1, 2, 3):
            bars.update(task.id, completed=done)
        assert task.speed
        assert bool(TimeColumn().render(task).plain) is timed


def test_no_bars_without_a_terminal():
    with shown_progress(Console(file=io.StringIO())) as progress:
        assert isinstance(progress, PlainProgress)
