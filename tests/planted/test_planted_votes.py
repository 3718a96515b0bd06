"""Every planted mistake in votes, and in rounds over documents, is seen by its gate."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gates import fine_tuning, votes
from tests.planted import fine_tuning_bugs, vote_bugs

Plant = Callable[[pytest.MonkeyPatch], None]
CASES: dict[str, tuple[Plant, Callable[[Path], None], str]] = {
    "clipped above alone": (
        vote_bugs.clipped_above_alone,
        votes.gate_a_document_moves_its_bound,
        "of the bound",
    ),
    "not clipped": (
        vote_bugs.not_clipped,
        votes.gate_a_document_moves_its_bound,
        "of the bound",
    ),
    "a document counts twice": (
        vote_bugs.a_document_counts_twice,
        votes.gate_a_document_moves_its_bound,
        "of the bound",
    ),
    "noise twice": (vote_bugs.noise_twice, votes.gate_one_draw_an_answer, "16 queries, 32 draws"),
    "too little noise": (
        vote_bugs.too_little_noise,
        votes.gate_one_draw_an_answer,
        "noise of a reward",
    ),
    "a query answered with two noises": (
        vote_bugs.answers_are_forgotten,
        votes.gate_one_draw_an_answer,
        "16 queries, 32 draws",
    ),
    "a query charged as one sample": (
        vote_bugs.a_query_is_charged_as_one,
        votes.gate_one_draw_an_answer,
        "other rounds are charged",
    ),
    "evaluations reach the voters": (
        vote_bugs.evaluations_ask,
        votes.gate_evaluations_reach_no_voter,
        "reached the voters",
    ),
    "what fails the gate is scored": (
        vote_bugs.all_texts_are_scored,
        votes.gate_only_what_passed_is_scored,
        "that fail the gate were scored",
    ),
    "an error quotes a document": (
        vote_bugs.an_error_quotes_a_document,
        votes.gate_no_word_of_a_document_is_left,
        "report",
    ),
    "every worker reads all documents": (
        fine_tuning_bugs.every_worker_reads_all,
        fine_tuning.gate_certified_documents,
        "shards of two workers",
    ),
    "a document is a unit": (
        fine_tuning_bugs.a_document_is_a_unit,
        fine_tuning.gate_certified_documents,
        "units are certified, workers hold",
    ),
    "each layer is clipped": (
        fine_tuning_bugs.each_layer_is_clipped,
        fine_tuning.gate_certified_documents,
        "a unit's vector has norm",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_planted_mistake_is_seen(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, gate, message = CASES[name]
    plant(monkeypatch)
    with pytest.raises(AssertionError, match=message):
        gate(tmp_path)
