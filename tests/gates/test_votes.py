"""The gates on votes, and on private rounds over documents."""

from pathlib import Path

import pytest

from tests.gates import fine_tuning, votes


@pytest.mark.parametrize(
    "gate",
    [
        votes.gate_a_document_moves_its_bound,
        votes.gate_one_draw_an_answer,
        votes.gate_evaluations_reach_no_voter,
        votes.gate_no_word_of_a_document_is_left,
        fine_tuning.gate_certified_documents,
    ],
    ids=lambda gate: gate.__name__,
)
def test_the_gates(gate, tmp_path: Path) -> None:
    gate(tmp_path)
