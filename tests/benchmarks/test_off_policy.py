"""The benchmark of off-policy estimates: its table, and the policy that rows show."""

import numpy as np
import pytest

from benchmarks import off_policy
from tests.benchmarks.quick import last_line


def test_off_policy(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("icu_sepsis", reason="the extra `envs` is not installed")
    found = last_line(off_policy, capsys)
    assert abs(found["ratios"]["clinicians_300_fitted_q_error"]) < 0.1


def test_unseen_actions_are_those_of_who_acted() -> None:
    policy = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]])
    counts = np.array([[3, 0, 1], [0, 2, 2], [0, 0, 0]])
    behaviour = np.array([[0.6, 0.0, 0.4], [0.0, 0.5, 0.5], [0.2, 0.2, 0.6]])
    np.testing.assert_allclose(
        off_policy.shown_part(policy, counts, behaviour),
        [[0.8, 0.0, 0.2], [0.0, 0.5, 0.5], [0.0, 1.0, 0.0]],
    )
