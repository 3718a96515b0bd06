"""The gate reads prompt and completion alone; what fails gets what the rule says."""

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.prompts import Prompt

PROMPT = Prompt(text="Write.", words=10)
TEN = "one two three four five six seven eight nine ten"


def test_length_is_held_against_the_prompt() -> None:
    gate = Gate(length_within=2)
    texts = [TEN, TEN + " and two", TEN + " and two more", "one two", ""]
    assert gate.passes([PROMPT] * 5, texts).tolist() == [True, True, False, False, False]
    assert gate.passes([Prompt(text="Write.")], ["short"]).tolist() == [True]


def test_format_and_repetition() -> None:
    gate = Gate(turn="User: |Assistant: ")
    good, bad = "User: hello there\n\nAssistant: good day", "User: hello\nand more"
    assert gate.passes([PROMPT] * 2, [good, bad]).tolist() == [True, False]
    assert Gate().passes([PROMPT] * 2, ["ha " * 30, TEN]).tolist() == [False, True]
    with pytest.raises(ConfigError, match="regular expression"):
        Gate(turn="(")


def test_the_judge_sees_prompt_and_completion_of_what_the_rules_let_through() -> None:
    seen = []

    def judge(prompt: Prompt, text: str) -> float:
        seen.append((prompt.text, text))
        return 6.0 if text == TEN else 5.9

    gate = Gate(length_within=3, judge=judge)
    assert gate.passes([PROMPT] * 3, ["short", TEN, TEN + " eleven"]).tolist() == [
        False,
        True,
        False,
    ]
    assert seen == [("Write.", TEN), ("Write.", TEN + " eleven")]


def test_rewards_of_what_failed() -> None:
    passed, scores = np.array([True, False, True, False]), np.array([-1.0, 3.0])
    assert Gate().rewards(scores, passed).tolist() == [-1, 0, 3, 0]
    assert Gate(failed="below").rewards(scores, passed).tolist() == [-1, 1 - 6, 3, -5]
    nobody = np.zeros(2, dtype=bool)
    assert Gate(failed="below").rewards(np.zeros(0), nobody).tolist() == [0, 0]
