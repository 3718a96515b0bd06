"""What files of tensors may keep, by name: parameters, noisy counts and sums, policies."""

import json
import re
from pathlib import Path

from safetensors import safe_open

CODING = re.compile(r"[0-9a-f]{24}|")
NETWORK = {"parameters", "ema", "exp_avg", "exp_avg_sq"}
ALONE = ({"rows"}, {"sums"})
"""Rows that were drawn, and sums of units with noise, in files of their own."""
GREEDY = {"actions", "values", "known"}
"""Tensors of a policy for finitely many states, and of the checkpoint that it comes from."""
GREEDY_MORE = {"penalties", "count_noise"}
"""Those that not every such policy has."""
COUNTED = re.compile(
    r"digest|(columns|scores|tables)(\.deviation)?|table\.\d+(\.\d+)+|cleaned\.\d+|deviation\.\d+|"
    "together"
)
"""Tensors of a checkpoint of marginals."""
NAMED = re.compile(
    r"((change_)?next_|previous_|)(observation|action)(_\d+)?|reward|end|time|rows_of_unit"
)
"""Columns of a table of marginals."""
WEIGHTS = re.compile(r"(behaviour\.)?\d+\.(weight|bias)")
"""Tensors of a policy, and what stands in its header."""
POLICY = {"widths", "threshold", "mean", "spread", "observation_space", "action_space", "levels"}
STATE = {
    *("run_id", "round_index", "block_nonce", "block_drawn"),
    *("stage", "noise_source", "coding"),
}


def header(path: Path) -> bytes:
    """Return the texts in the header of a file of tensors, one a line."""
    with safe_open(path, framework="np") as file:
        return "\n".join((file.metadata() or {}).values()).encode()


def check_told(path: Path) -> None:
    """Fail if more is told of joint counts than their columns, parts, step and noise."""
    with safe_open(path, framework="np") as file:
        told = json.loads(file.get_tensor("together").tobytes())
    for one in told:
        assert set(one) == {"columns", "parts", "step", "noise_units"}
        assert all(NAMED.fullmatch(name) for name in one["columns"])
        assert len(one["columns"]) == len(one["parts"])
        assert all(type(number) is int for number in (*one["parts"], one["step"]))


def check_kept(path: Path) -> None:
    """Fail if a file of tensors keeps anything that has no known name."""
    with safe_open(path, framework="np") as file:
        names, said = set(file.keys()), file.metadata() or {}
    if names >= GREEDY:
        odd = names - GREEDY - GREEDY_MORE
    elif set(said) == {"policy"}:
        odd = {one for one in names if not WEIGHTS.fullmatch(one)}
        odd |= set(json.loads(said["policy"])) - POLICY
    elif "columns" in names:
        odd = {one for one in names if not COUNTED.fullmatch(one)}
        if "together" in names:
            check_told(path)
    else:
        odd = set() if names in ALONE else names ^ NETWORK
    assert not odd, f"{path.name} keeps {sorted(odd)}"
    if not said or set(said) == {"policy"}:  # a policy of finitely many states says nothing
        return
    assert set(said) == {"state"}
    state = json.loads(said["state"])
    assert set(state) == STATE
    assert CODING.fullmatch(state["coding"]), "a coding is a digest of public facts"
