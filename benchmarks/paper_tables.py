"""Each paper's table beside ours: theirs, ours, intervals, epsilon by two accountants, cost.

An interval says how it was made: ``t, n=3`` is Student's, of the mean of three seeds. Where the
least and the largest of some agents alone were kept, it is ``range, n=3``.

    python -m benchmarks.paper_tables --scale cpu
    python -m benchmarks.paper_tables --scale paper

It runs nothing: it reads the cells that are kept in ``benchmarks/results/``. What was not run at
the scale, or not kept, is blank. Results of the scale ``full`` are the paper's own sizes, which a
CPU does, and count for both.
"""

import argparse
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import (
    cells,
    harness,
    utility_curves,
    utility_expert,
    utility_primorl,
    utility_scales,
)
from benchmarks.utility_cells import Cell, Table, run_config
from distributed_privrl.evaluation.intervals import Interval, mean_interval
from distributed_privrl.experiments.registry import method_named, parse_config, plan_run
from distributed_privrl.privacy.accounting import cross_check
from distributed_privrl.privacy.units import Relation
from distributed_privrl.stages.round_plan import RoundPlan

Line = dict[str, Any]
SCALES: Mapping[str, Sequence[str]] = {"cpu": ("cpu", "full"), "paper": ("paper", "full")}
"""Scales of stored results that count for a scale asked for."""
SAME_NOISE = 0.01
"""Relative difference of noise from which a stored run had another plan than it would have now."""
SAME_DATA = 0.01
"""Relative difference of the recorded mean return from which recordings are not of one recipe."""
STEPS = ("K=100", "K=1000")
"""Trajectories of figure 1 of the DP-VAPVI paper that are shown."""

PAPER_COSTS = {
    "pgm": "6 h, 11.1 GB",
    "privsyn": "8.5 h, 9.4 GB",
    "pre_pate_gan": "23.2 h, 8.1 GB",
    "privorl_n": "4 h, 21.4 GB",
    "privorl_ar": None,
    "marginals": None,
    "hybrid": None,
    "dp_transformer": "16.7 h, 43.1 GB",
    "privorl_j": "5.2 h, 39.7 GB",
}
"""Of PrivORL's table XI: pre-training, fine-tuning and synthesis, and the most that one takes."""


def stored(name: str, scale: str) -> list[Mapping[str, Any]]:
    """Return the kept cells of a benchmark at a scale; none if it was not run there.

    Ready sweeps have no scale: they are made for a CPU.
    """
    path = harness.RESULTS / f"{name}.json"
    if not path.exists():
        return []
    found = json.loads(path.read_text())
    return list(found["cells"]) if found.get("scale", "cpu") in SCALES[scale] else []


def joined(name: str, keys: Sequence[str], scale: str) -> list[Mapping[str, Any]]:
    """Return the stored lines of a benchmark with the seeds of cells that were committed since.

    A cell adds its seed to the line that differs in nothing else; it has no say where the stored
    line has that seed, other noise, or a recording that earned otherwise. Cells of a row that was
    not stored make a line of their own. A recording that was made anew by the same recipe and seed
    may differ a little from the stored one's.

    Args:
        name: of the benchmark.
        keys: what tells its lines apart.
        scale: see `stored`.
    """
    lines = {tuple(one[key] for key in keys): dict(one) for one in stored(name, scale)}
    many = {key: len(one["seeds"]) for key, one in lines.items()}
    committed = cells.committed(name) if "cpu" in SCALES[scale] else []
    for cell in sorted((one for one in committed if not one["changes"]), key=_seed):
        own = {**cell, "row": cell["variant"], "noise": cell["noise_multiplier"]}
        key = tuple(own[part] for part in keys)
        known = {part: own.get(part) for part in (*keys, "noise", "data")}
        blank = {**known, "certified": own["certified_epsilon"], "seeds": [], "CPU s": 0.0}
        one = lines.setdefault(key, blank)
        fits = _same(one["noise"], own["noise"], SAME_NOISE)
        fits = fits and _same(one.get("data"), own.get("data"), SAME_DATA)
        if fits and cell["seed"] >= many.get(key, 0):
            count = len(one["seeds"])
            one["CPU s"] = (count * one["CPU s"] + cell["cpu_s"]) / (count + 1)
            one["seeds"] = [*one["seeds"], cell["return"]]
            one["return"] = _mean(one["seeds"])
    return list(lines.values())


def _seed(cell: Mapping[str, Any]) -> int:
    return int(cell["seed"])


def _same(one: float | None, other: float | None, within: float) -> bool:
    """Return whether two figures are the same but for a relative difference."""
    if one is None or other is None:
        return one is other
    return abs(one / other - 1) <= within


def line(where: str, what: str, **values: Any) -> Line:
    """Return a line of a table; what ``values`` do not name is blank."""
    blank: Line = {
        "where": where,
        "what": what,
        "epsilon, theirs": None,
        "theirs": None,
        "epsilon, ours": None,
        "by PLD": None,
        "by the paper's accountant": None,
        "ours": None,
        "interval": None,
        "without privacy": None,
        "its interval": None,
        "CPU min": None,
        "MB": None,
    }
    if unknown := set(values) - set(blank):
        raise KeyError(f"a line has no {', '.join(sorted(unknown))}")
    return blank | values


def accounted(values: Mapping[str, Any], noise: float | None) -> Line:
    """Return what a run's rounds cost by PLD and by Renyi DP, which the papers' code uses.

    Args:
        values: of its configuration; no data are opened.
        noise: multiplier that the stored run had; other noise means another plan: blank.
    """
    config = parse_config(dict(values), source="a stored cell")
    plan = plan_run(config)
    if not isinstance(plan, RoundPlan) or plan.mechanism is None or noise is None:
        return {}
    if not _same(plan.mechanism.noise_multiplier, noise, SAME_NOISE):
        return {}
    assert config.privacy.delta is not None
    before = method_named(config.method).declare(config).spent  # pure: it adds up
    renyi = cross_check(
        plan.events(plan.rounds),
        delta=config.privacy.delta,
        relation=Relation(config.privacy.relation),
    )
    return {
        "by PLD": plan.epsilon(plan.rounds, certified=True),
        "by the paper's accountant": None if renyi.epsilon is None else renyi.epsilon + before,
    }


def privorl(scale: str) -> Iterator[Line]:
    """Yield PrivORL's tables I and II: what IQL earns on synthetic rows.

    Theirs are shares of what it earns on real rows. Ours are returns, with the return on real rows
    under ``without privacy``: three agents on one generator make no share, and a range for want of
    an interval.
    """
    parts = (
        (
            "PrivORL-n, table I",
            "utility_maze2d",
            utility_scales.MAZE_TABLES["privorl_n"],
        ),
        (
            "PrivORL-n, table I, HalfCheetah",
            "utility_mujoco",
            utility_scales.MUJOCO_TABLES["privorl_n"],
        ),
        ("PrivORL-j, table II", "utility_maze2d_j", utility_scales.MAZE_TABLES["privorl_j"]),
    )
    for where, name, table in parts:
        found = {(one["maze"], one["variant"], one["epsilon"]): one for one in stored(name, scale)}
        for (maze, epsilon), share in table.paper.items():
            values: Line = {"epsilon, theirs": epsilon, "theirs": share}
            cell, real = found.get((maze, "ours", epsilon)), found.get((maze, "real", None))
            if cell is not None:
                values |= {
                    "epsilon, ours": epsilon,
                    "ours": cell["iql"],
                    "interval": _range(cell),
                    "CPU min": cell["cpu min"],
                }
                values |= _of_maze(maze, epsilon, cell["z"], table, scale)
                if real is not None:
                    values |= {"without privacy": real["iql"], "its interval": _range(real)}
            yield line(where, f"{maze}, IQL ({table.method})", **values)


def _range(cell: Mapping[str, Any]) -> str:
    """Return the least and the largest return of a cell's agents."""
    return f"{cell['iql, range of 3']} (range, n=3)"


def _of_maze(
    maze: str, epsilon: float | None, noise: float | None, table: Table, scale: str
) -> Line:
    if scale not in table.scales:
        return {}
    cell = Cell(maze=maze, variant="ours", epsilon=epsilon)
    values = run_config(cell, table, table.scales[scale], keep=Path("kept"))
    return accounted({**values, "runtime": {}}, noise)


def privorl_agents(scale: str) -> Iterator[Line]:
    """Yield PrivORL's EDAC, of its tables I and II, and its figure 9: TD3+BC as it learns.

    Theirs are shares of what EDAC earns on real rows; the figure is curves alone. Ours are returns.
    After the last step stands the mean of the last five evaluations.
    """
    keys = ("method", "maze", "rows", "epsilon", "agent")
    found = {
        tuple(one[key] for key in keys): one
        for one in stored(utility_curves.NAME, scale)
        if one["seeds"]
    }
    tables = {"privorl_n": "PrivORL-n, table I", "privorl_j": "PrivORL-j, table II"}
    for method, paper in utility_curves.EDAC.items():
        for (maze, epsilon), share in paper.items():
            values: Line = {"epsilon, theirs": epsilon, "theirs": share}
            one = found.get((method, maze, "ours", epsilon, "edac"))
            if one is not None:
                table = utility_curves.TABLES[method, maze]
                values |= _of_maze(maze, epsilon, one["noise"], table, scale)
                cost = one["agent CPU s"] + one["release CPU s"]
                values |= _measured({**one, "CPU s": cost})
            values |= _without_privacy(found.get((method, maze, "real", None, "edac")))
            yield line(tables[method], f"{maze}, EDAC", **values)
    for method, maze, epsilon in utility_curves.FIGURE_9:
        ours = found.get((method, maze, "ours", epsilon, "td3bc"), {}).get("curve", {})
        real = found.get((method, maze, "real", None, "td3bc"), {}).get("curve", {})
        steps = ours.get("steps") or real.get("steps") or [None]
        for place, step in enumerate(steps):
            at = "" if step is None else f", step {step:,}"
            values = {"epsilon, theirs": epsilon}
            if ours:
                one = _earned([curve[place] for curve in ours["seeds"]])
                values |= _measured({**one, "epsilon": epsilon, "CPU s": None})
            if real:
                values |= _without_privacy(_earned([curve[place] for curve in real["seeds"]]))
            yield line("PrivORL, figure 9", f"{maze}, TD3+BC{at}", **values)


def _earned(seeds: Sequence[float]) -> dict[str, Any]:
    """Return the return and the seeds of agents, as stored lines have them."""
    return {"return": _mean(seeds), "seeds": seeds}


def privorl_ablations(scale: str) -> Iterator[Line]:
    """Yield PrivORL's figures 6 and 8 and its table XI: curiosity, horizons, and what runs cost.

    Their figures are curves alone; the interval is that of the sweep's three seeds. In table XI
    theirs are hours and the largest memory on A6000 GPUs, for Maze2D-medium. Ours are minutes and
    memory of a run on a CPU, of the kept comparison of methods, and stand beside no return.
    """
    for where, name, column in (
        ("PrivORL-n, figure 6, fidelity", "sweep_curiosity_rate", "curiosity_rate"),
        ("PrivORL-j, figure 8, IQL", "sweep_horizon", "horizon"),
    ):
        for one in stored(name, scale):
            values = {"epsilon, ours": one["epsilon"], "ours": one["score"]}
            what = f"{column.replace('_', ' ')} {one[column]:g}"
            yield line(where, what, **values, interval=one["score 95 %"])
    found = stored("comparison", scale)
    for method, costs in PAPER_COSTS.items():
        own = [one for one in found if one["method"] == method and one["CPU min"]]
        for one in own or [None]:
            values = {"theirs": costs}
            if one is not None:
                values |= {"epsilon, ours": one["epsilon"]}
                values |= {key: one[key] for key in ("CPU min", "MB")}
            table = "" if one is None else f", {one['table']}"
            yield line("PrivORL, table XI", f"{method}{table}", **values)


def primorl(scale: str) -> Iterator[Line]:
    """Yield PriMORL's table 1: returns; theirs are shares of MOPO's.

    The paper has five seeds; how many ours has, its interval says.
    """
    lines = joined(utility_primorl.NAME, ("task", "row", "epsilon"), scale)
    setting = utility_primorl.Setting(work=Path("work"), data_seed=1, changes=(), trajectories=None)
    for (task, printed), share in utility_primorl.PAPER.items():
        yield line("PriMORL, table 1", task, **{"epsilon, theirs": printed, "theirs": share})
    for one in lines:
        if one["row"] != "ours":
            continue
        mopo = [c for c in lines if c["task"] == one["task"] and c["row"][:4] == "mopo"]
        cell = utility_primorl.Cell(
            task=one["task"], variant="ours", epsilon=one["epsilon"], seed=0
        )
        costs = accounted(utility_primorl.values_of(cell, setting, None), one["noise"])
        values = _measured(one) | costs | {"by PLD": one["certified"]}
        values |= _without_privacy(max(mopo, key=lambda cell: cell["return"], default=None))
        yield line("ours", one["task"], **values)


def _measured(one: Mapping[str, Any]) -> Line:
    """Return what lines of several seeds have in common."""
    return {
        "epsilon, ours": one["epsilon"],
        "ours": one["return"],
        "interval": mean_interval(one["seeds"]),
        "CPU min": None if one["CPU s"] is None else one["CPU s"] / 60,
    }


def _without_privacy(one: Mapping[str, Any] | None) -> Line:
    """Return what a line says of the cell of several seeds that had no privacy, if it was run."""
    if one is None:
        return {}
    return {"without privacy": one["return"], "its interval": mean_interval(one["seeds"])}


def value_iteration(scale: str) -> Iterator[Line]:
    """Yield figure 1 of the DP-VAPVI paper: suboptimality, which the paper has as curves alone.

    The theorems' constants, and C = 1 (leading); one data set each.
    """
    found = {
        (one["instance"], one["constants"], one["method"], one["rho"]): one
        for one in stored("utility_value_iteration", scale)
    }
    where = "DP-VAPVI, figure 1"
    if not found:
        yield line(where, "suboptimality after K trajectories")
    for (instance, constants, method, rho), one in found.items():
        if method != "DP-VAPVI" or constants not in ("theorem", "leading"):
            continue
        plain = found.get((instance, constants, "VAPVI", None), {})
        budget = {"epsilon, theirs": f"rho {rho:g}", "epsilon, ours": f"rho {rho:g}"}
        for step in STEPS:
            values = {"ours": one[step], "without privacy": plain.get(step)}
            yield line(where, f"{instance}, {constants}, {step}", **budget, **values)


def expert(scale: str) -> Iterator[Line]:
    """Yield table 2 of expert-level DP: returns; theirs are shares of the agent without privacy.

    First by epsilon, with three quarters of it for the filter, or all of it for private rounds.
    Then at epsilon 10 by p, the share of steps that are noisy: at 0 the filter has all of epsilon,
    at 1 the rounds have. The paper's accountant takes a public coin for a secret one, and is not
    computed.
    """
    lines = joined(utility_expert.NAME, _EXPERT_KEYS, scale)
    found = {tuple(one[key] for key in _EXPERT_KEYS): one for one in lines}
    for paper, row, how in (
        (utility_expert.PAPER, "ours", ""),
        (utility_expert.ROUNDS_ALONE, "dp_sgd", ", rounds alone"),
    ):
        for (environment, experts, agent, epsilon), share in paper.items():
            one = (environment, experts, agent, row, epsilon)
            yield _of_expert("Expert level, table 2", one, how, share, found)
    for (environment, experts, agent, p), mix_share in utility_expert.MIXES.items():
        row = utility_expert.MIX_ROWS[p]
        one = (environment, experts, agent, row, utility_expert.MIX_EPSILON)
        yield _of_expert("Expert level, table 2, mixes", one, f", p = {p:g}", mix_share, found)


_EXPERT_KEYS = ("environment", "experts", "agent", "row", "epsilon")


def _of_expert(
    where: str,
    key: tuple[Any, ...],
    how: str,
    share: float | None,
    found: Mapping[tuple[Any, ...], Mapping[str, Any]],
) -> Line:
    """Return the line of one row of expert-level DP's table 2, ours beside it if it was run."""
    environment, experts, agent, _, epsilon = key
    values: Line = {"epsilon, theirs": None if share is None else epsilon, "theirs": share}
    if (one := found.get(key)) is not None:
        values |= _measured(one) | {"by PLD": one["certified"]}
        plain = found.get((environment, experts, agent, "non_private", None))
        values |= _without_privacy(plain)
    return line(where, f"{environment}, {agent}, m = {experts:,}{how}", **values)


def dprft(scale: str) -> Iterator[Line]:
    """Yield DP-RFT's comparison: ours on manuals, for the paper's corpora are not to be had."""
    names = ("dp_votes", "aug_pe")
    found = [one for one in stored("utility_text", scale) if one["row"] in names]
    if not found:
        yield line("DP-RFT", "texts like the private ones")
    for one in found:
        runs = list(one["runs"].values())
        topics = [run["figures"]["topic"] for run in runs]
        what = f"{one['row']}, topic, {one['ran']} seeds"
        values: Line = {"CPU min": _mean(run["cpu s"] / 60 for run in runs if "cpu s" in run)}
        if one["epsilon"] == "none":
            interval = mean_interval(topics) if topics else None
            values |= {"without privacy": one["topic"], "its interval": interval}
        elif runs:
            values |= {"epsilon, ours": float(one["epsilon"]), "ours": one["topic"]}
            values |= {"by PLD": max(run["certified epsilon"] for run in runs)}
            values |= {"interval": mean_interval(topics)}
        yield line("DP-RFT", what, **values)


def _mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return sum(listed) / len(listed) if listed else None


PAPERS = {
    "PrivORL": privorl,
    "PrivORL, EDAC and learning curves": privorl_agents,
    "PrivORL, ablations and costs": privorl_ablations,
    "PriMORL": primorl,
    "DP-APVI and DP-VAPVI": value_iteration,
    "DP-RFT": dprft,
    "Expert level": expert,
}


def tables(scale: str) -> str:
    """Return all tables as Markdown."""
    parts = [f"# Papers and ours, scale {scale}"]
    for paper, make in PAPERS.items():
        parts += [f"## {paper}", " ".join((make.__doc__ or "").split()).partition("Yield ")[2]]
        lines = ({key: _shown(value) for key, value in one.items()} for one in make(scale))
        parts.append(harness.table(list(lines)))
    return "\n\n".join(parts)


def _shown(value: Any) -> str:
    """Return a value as a cell; what is not there is blank."""
    if isinstance(value, float):
        return f"{value:,.4g}"
    return "" if value is None else f"{value:,.4g}" if isinstance(value, Interval) else str(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_tables")
    parser.add_argument("--scale", choices=list(SCALES), default="cpu")
    print(tables(parser.parse_args(arguments).scale))


if __name__ == "__main__":
    main()
