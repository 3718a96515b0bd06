"""Prompts come from public knowledge: templates are data, answers and documents fill them."""

from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.random import Streams
from distributed_privrl.text.gate import Gate
from distributed_privrl.text.prompts import (
    Lengths,
    PromptTemplate,
    asked_prompts,
    described,
    document_prompts,
    facts,
    templates,
)
from distributed_privrl.text.public_text import PublicDocument


def document(module: str, text: str) -> PublicDocument:
    return PublicDocument(text=text, module=module, package="p", licence="l")


DOCUMENTS = [
    document("p.linear_maps", "Matrices have eigenvalues and eigenvalues have signs"),
    document("p.rivers", "Rivers have deltas and deltas have signs"),
    document("p.seas", "Seas have rivers and eigenvalues and deltas"),
]


def test_the_papers_two_stages() -> None:
    asked = []

    def ask(request: str) -> str:
        asked.append(request)
        if "categories" in request:
            return "1. Politics\n2. Sports\n2. Sports\n"
        if "augment" in request:
            return "tax,\nvote, law"
        return "1) Elections\n- Budget"

    found = asked_prompts(templates()["bbc"], 6, ask=ask, streams=Streams(0))
    assert len(found) == 6
    assert {one.topic for one in found} == {"Politics", "Sports"}
    assert all(one.keywords == ("tax", "vote", "law") for one in found)
    assert all("tax, vote, law" in one.text and f"{one.words} words" in one.text for one in found)
    assert len(asked) == 1 + 2 + 4
    assert any("keyword is Budget" in request for request in asked)
    assert found == asked_prompts(templates()["bbc"], 6, ask=ask, streams=Streams(0))
    assert found != asked_prompts(templates()["bbc"], 6, ask=ask, streams=Streams(1))


def test_choices_need_no_model_and_all_are_used() -> None:
    found = asked_prompts(templates()["wildchat"], 600, ask=None, streams=Streams(0))
    assert len({one.text for one in found}) > 550
    assert len({one.topic for one in found}) == 12
    with pytest.raises(ConfigError, match="asks a model"):
        asked_prompts(templates()["qmsum"], 2, ask=None, streams=Streams(0))
    with pytest.raises(ConfigError, match="are empty"):
        asked_prompts(templates()["qmsum"], 2, ask=lambda _: "\n", streams=Streams(0))


def test_every_template_has_a_gate_that_can_be_made() -> None:
    for name, one in templates().items():
        assert Gate(**one.gate).least_rating == 6, name
    assert templates()["pubmed"].gate["length_within"] == 50
    assert templates()["bbc"].gate["length_within"] == 100


def test_lengths_of_the_paper() -> None:
    lengths = templates()["bbc"].lengths
    assert lengths is not None
    drawn = np.array([lengths.draw(np.random.default_rng(seed)) for seed in range(2000)])
    assert set(drawn) <= set(range(100, 901, 100))
    assert drawn.mean() == pytest.approx(400, abs=10)
    assert drawn.std() == pytest.approx(104, abs=8)
    even = Lengths(low=10, high=20, multiple=5)
    assert {even.draw(np.random.default_rng(seed)) for seed in range(40)} == {10, 15, 20}


def test_facts_are_a_documents_rarest_words() -> None:
    assert facts(DOCUMENTS, keywords=2) == [
        ("p linear maps", ("eigenvalues", "signs")),
        ("p rivers", ("deltas", "rivers")),
        ("p seas", ("deltas", "eigenvalues")),
    ]


def test_prompts_of_documents_and_documents_behind_prompts() -> None:
    prose = templates()["prose"]
    found = document_prompts(prose, DOCUMENTS, 30, streams=Streams(0), keywords=1)
    assert {one.topic for one in found} == {"p linear maps", "p rivers", "p seas"}
    assert all(one.text.endswith(f"Words: {one.words}.\n") for one in found)
    shown = described(prose, DOCUMENTS, keywords=2)
    assert shown[0] == (
        "Topic: p linear maps. Keywords: eigenvalues, signs. Words: 10.\n" + DOCUMENTS[0].text
    )
    with pytest.raises(ConfigError, match="no keywords"):
        document_prompts(prose, DOCUMENTS[:1], 3, streams=Streams(0))


def test_a_users_templates(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("notes: {topic: a, prompt: 'On {a}, {b}', stages: [{makes: a, choices: [x]}]}")
    with pytest.raises(ConfigError, match="no stage makes"):
        asked_prompts(templates(path)["notes"], 1, ask=None, streams=Streams(0))
    for wrong in ("notes: {topic: a}", "- 1", "notes: {topic: a, prompt: b, stages: [{makes: a}]}"):
        path.write_text(wrong)
        with pytest.raises(ConfigError, match=r"mine\.yaml"):
            templates(path)
    with pytest.raises(ValueError, match="low"):
        Lengths(low=3, high=2)
    assert PromptTemplate(prompt="x", topic="t").stages == ()
