import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks import utility_protocol
from benchmarks.harness import RESULTS
from benchmarks.protocol import ladder, ladder_cells, pair_cells
from benchmarks.protocol.ladder_cells import FOLDER
from benchmarks.protocol.pair_cells import NAME
from benchmarks.protocol.pairs import HELD_OUT, METHODS, REAL, SENSITIVE, Pair, Registered
from benchmarks.protocol.registration import OPENINGS, REGISTERED, openings, register, settings_hash
from benchmarks.protocol.statistics import FEWEST_PAIRS
from benchmarks.utility_rows import false_rewards, missed_rewards
from distributed_privrl.core.errors import UnsafeError
from distributed_privrl.environments.mazes import MAZES

STORED = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("pair-cpu_*.json"))]
SCORES = dict(zip(ladder.RUNGS, (90.0, 60.0, 40.0, 5.0, 10.0), strict=True))


def _run(folder: Path, part: str, *more: str) -> None:
    given = [*more, "--part", part, "--scale", "quick", "--mazes", "umaze", "--pairs", "1"]
    places = [f"--work={folder / 'work'}", f"--cells={folder / 'cells'}", f"--out={folder}"]
    utility_protocol.main([*given, "--methods", "privorl_ar", *places])


def _order_the_ladder(folder: Path) -> None:
    for cell in ladder_cells.cells_of(["eval-umaze"], "quick"):
        row = {"normalised": SCORES[cell.rung], "settings_sha256": settings_hash(cell.settings)}
        (folder / f"{cell.name}.json").write_text(json.dumps(row))


def test_pairs_need_an_ordered_ladder_and_registered_settings_and_are_judged_once(
    judged: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cells = tmp_path / "cells"
    _run(tmp_path, "register")
    _run(tmp_path, "pairs")
    assert "grid in eval-umaze publishes nothing" in capsys.readouterr().out
    assert (judged, openings(cells)) == ([], [])

    _order_the_ladder(cells)
    registered = (cells / REGISTERED).read_text()
    (cells / REGISTERED).unlink()
    with pytest.raises(UnsafeError, match="register and commit"):
        _run(tmp_path, "pairs")
    (cells / REGISTERED).write_text(registered)
    assert (judged, openings(cells)) == ([], [])

    _run(tmp_path, "pairs")
    assert judged == [4000, 4000]
    (line,) = _lines(tmp_path, method="privorl_ar")
    assert (line["pairs"], line["real"], line["synthetic"]) == (1, 90.0, 80.0)
    assert (line["difference"], line["share"], line["share 95 %"]) == (
        -10.0,
        pytest.approx(8 / 9),
        None,
    )
    assert [blank["real"] for blank in _lines(tmp_path, method="privorl_n")] == [""]
    log = openings(cells)
    assert [set(entry) - {"sha256"} for entry in log] == [
        {"opened"},
        {"judged"},
        {"begun"},
        {"judged"},
    ]

    _run(tmp_path, "pairs")  # all is kept
    assert (len(judged), openings(cells)) == (2, log)
    pair = Pair(scale="quick", maze="umaze", variant="privorl_ar", epsilon=1.0, seed=0)
    for epsilon in ("2", "1.0000001"):  # no second figure, and the first is not removed
        with pytest.raises(UnsafeError, match="epsilon in umaze is 1"):
            _run(tmp_path, "pairs", f"--epsilon={epsilon}")
    kept = cells / f"{pair.name}.json"
    kept.unlink()
    with pytest.raises(UnsafeError, match="was judged before"):
        _run(tmp_path, "pairs")
    assert len(judged) == 2


@pytest.mark.parametrize("part", ["register", "pairs"])
def test_settings_that_are_registered_are_used_in_no_other_folder(
    part: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(utility_protocol, "FOLDER", tmp_path / "committed")
    (tmp_path / "committed").mkdir()
    register(Registered(scale="quick").settings, tmp_path / "committed")
    with pytest.raises(UnsafeError, match="leave out --cells"):
        _run(tmp_path, part)


def _lines(folder: Path, *, method: str) -> list[dict[str, Any]]:
    saved = json.loads((folder / f"{NAME}.json").read_text())
    return [line for line in saved["cells"] if line["method"] == method]


def test_what_is_drawn_follows_from_the_settings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Registered(scale="cpu")
    mazes = [before.held_out_maze(name) for name in HELD_OUT]
    assert len(set(mazes)) == len(HELD_OUT)
    seeds = [_pair(maze, seed).recording_seed for maze in SENSITIVE for seed in range(10)]
    assert len(set(seeds)) == len(seeds)
    assert [_pair(maze, 0).recording_seed for maze in SENSITIVE] == seeds[::10]
    monkeypatch.setattr(ladder, "MARGIN", 3.0)
    after = Registered(scale="cpu")
    assert after.digest != before.digest
    assert [_pair(maze, 0).recording_seed for maze in SENSITIVE] != seeds[::10]


@pytest.mark.parametrize("maze", SENSITIVE)
@pytest.mark.parametrize("method", METHODS)
def test_a_generator_reads_rows_of_other_mazes_alone(maze: str, method: str) -> None:
    pair = Pair(scale="cpu", maze=maze, variant=method, epsilon=1.0, seed=0)
    data = pair.run_values()["data"]
    assert data["sensitive"] == f"pairs/{maze}-0-v0"
    others = {name for name in SENSITIVE if name not in (maze, *HELD_OUT)}
    expected = set() if method == "hybrid" else {f"maze/{name}-v0" for name in others}
    assert set(data["public"]) == expected


def _pair(maze: str, seed: int) -> Pair:
    return Pair(scale="cpu", maze=maze, variant=REAL, epsilon=None, seed=seed)


def test_stored_pairs_are_of_the_registered_settings_and_were_judged_once() -> None:
    registered = json.loads((FOLDER / REGISTERED).read_text())
    digest = Registered(scale="cpu").digest
    assert registered["sha256"] == digest == settings_hash(registered["settings"])
    judged = [entry["judged"] for entry in openings(FOLDER) if "judged" in entry]
    assert len(set(judged)) == len(judged), f"{FOLDER / OPENINGS} has a cell twice"
    fields = ("scale", "maze", "variant", "epsilon", "seed")
    for row in STORED:
        pair = Pair(**{name: row[name] for name in fields})
        assert row["settings_sha256"] == settings_hash(pair.settings)
        assert row["recording"] == pair.recording_seed
        assert row["normalised"] == pytest.approx(sum(row["shifts"]) / len(row["shifts"]))
        assert not pair.sensitive or pair.name in judged


def test_the_stored_table_has_the_stored_pairs() -> None:
    saved = json.loads((RESULTS / f"{NAME}.json").read_text())
    shown = [run for line in saved["cells"] for run in line["runs"].values()]
    found = {row["maze"] for row in STORED}
    assert found
    assert {run["synthetic"]["maze"] for run in shown} <= found
    for run in shown:
        assert run["synthetic"] in STORED
        assert run["real"] in STORED
    runs = {run["synthetic"]["seed"] for line in saved["cells"] for run in line["runs"].values()}
    assert len(runs) == pair_cells.kept_pairs("cpu", FOLDER) > FEWEST_PAIRS
    setting = pair_cells.Setting(folder=FOLDER, work=Path("unused"))
    pairs = [Pair(**{name: row[name] for name in Pair.__dataclass_fields__}) for row in STORED]
    again = pair_cells.result_of(sorted(pairs, key=lambda pair: pair.seed), setting)
    kept = {(line["maze"], line["method"]): line for line in saved["cells"]}
    for line in again.cells:
        assert kept[line["maze"], line["method"]] == dict(line)


def test_the_page_says_what_the_stored_pairs_say() -> None:
    page = (RESULTS.parents[1] / "docs" / "utility.md").read_text()
    saved = json.loads((RESULTS / f"{NAME}.json").read_text())
    lines = {(line["maze"], line["method"]): line for line in saved["cells"]}
    ours, theirs = lines["umaze", "privorl_ar"], lines["umaze", "marginals"]
    interval = ours["difference 95 %"].partition(" (")[0]
    missed = (RESULTS.parents[1] / "README.md").read_text()
    assert f"earns {ours['synthetic']:.0f} of 100, on the real rows {ours['real']:.0f}" in missed
    assert f"of the difference {interval})" in missed
    for said in (
        f"earns {ours['synthetic']:.0f} of 100, in the real rows {ours['real']:.0f}",
        f"({ours['pairs']} pairs of a recording and a generator;"
        f" difference {ours['difference']:.0f}, 95 % {interval})",
        f"from {100 * ours['reach']:.0f} % of the starts",
        f"`marginals` it earns {theirs['synthetic']:.0f} ({theirs['pairs']} pairs",
    ):
        assert said in page, said


def test_rewards_away_from_the_goal_are_false_and_rows_there_without_one_miss_it() -> None:
    maze = MAZES["umaze"]
    places = np.array([maze.goal, maze.goal, maze.goal, (5.0, 5.0), (5.0, 5.0)])
    rewards = np.array([1.0, 0.0, 0.0, 1.0, 0.0])
    assert false_rewards(rewards, places, maze) == 1 / 2
    assert missed_rewards(rewards, places, maze) == 2 / 3
    assert np.isnan(false_rewards(np.zeros(5), places, maze))
    assert np.isnan(missed_rewards(rewards[3:], places[3:], maze))
