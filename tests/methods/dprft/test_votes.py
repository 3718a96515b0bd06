"""A unit moves the sum of votes by no more than is stated: every kind of document is tried."""

import itertools
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.data.corpus import CorpusRef
from distributed_privrl.methods.dprft import voter
from distributed_privrl.methods.dprft.similarity import RADIUS, Rounded, Similarity
from distributed_privrl.methods.dprft.votes import (
    SHARES,
    CentredVotes,
    ClippedVotes,
    NearestVotes,
    SoftVotes,
    VoteRule,
    embedding_sensitivity,
)
from distributed_privrl.privacy.units import Relation
from distributed_privrl.text.encoders import HashedEncoder
from distributed_privrl.text.turns import turn_statistics
from tests.worlds.corpora import WrittenVectors, asked, summed, voters, write_corpus, written

PLAIN = Similarity(dimension=2)
STRUCTURED = Similarity(dimension=2, structure_weight=0.5)
DIRECTIONS = [*itertools.product((-1, 0, 1), repeat=2), (0.9, 0.1)]
WORDS = ["", " A: a b", "\nA: a b\nB: a b\nA: " + "c " * 300]
NULL, ONE = Relation.REPLACE_WITH_NULL, Relation.REPLACE_ONE


def _rules(similarity: Similarity) -> list[VoteRule]:
    return [
        ClippedVotes(similarity=similarity, threshold=0.5),
        ClippedVotes(similarity=similarity, threshold=0.8),
        SoftVotes(similarity=similarity, temperature=0.05),
        NearestVotes(similarity=similarity),
        CentredVotes(similarity=similarity, clip_norm=0.7),
    ]


RULES = [*_rules(PLAIN), *_rules(STRUCTURED)]
NAMES = [
    f"{type(rule).__name__}-{rule.similarity.structure_weight:g}-{place}"
    for place, rule in enumerate(RULES)
]


def _texts(similarity: Similarity) -> list[str]:
    words = WORDS if similarity.structure_weight else [""]
    return [written(v, w) for v in DIRECTIONS for w in words]


def _moved(rule: VoteRule, difference: NDArray[np.int64]) -> float:
    """Return by how much votes differ, as the rule's sensitivity is stated."""
    if rule.each_sample:
        return float(np.abs(difference).max())
    return float(np.sqrt(np.square(difference.astype(np.float64)).sum()))


def _each(rule: VoteRule, texts: list[str], batch: list[str]) -> NDArray[np.int64]:
    similarity = rule.similarity
    encoded = WrittenVectors(2).encode(texts)
    documents = similarity.documents(encoded, turn_statistics(texts))
    return rule.votes(similarity.scores(documents, asked(similarity, batch)))


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_no_document_and_no_pair_moves_votes_further_than_stated(rule: VoteRule) -> None:
    texts = _texts(rule.similarity)
    pairs = [[one, other] for one, other in itertools.combinations(texts[:20], 2)]
    largest = {NULL: 0.0, ONE: 0.0}
    for batch in (*pairs, texts, [texts[0]] * 3, texts[:1]):
        given = _each(rule, texts, batch)
        for relation, differences in (
            (NULL, given),
            (ONE, (given[:, None] - given[None]).reshape(-1, given.shape[1])),
        ):
            moved = max(_moved(rule, difference) for difference in differences)
            assert moved <= rule.sensitivity(relation)
            largest[relation] = max(largest[relation], moved)
    assert largest[NULL] > 0.99 * rule.sensitivity(NULL)  # and no less: noise is not wasted
    tight = 0.6 if isinstance(rule, CentredVotes) else 0.99
    assert largest[ONE] > tight * rule.sensitivity(ONE)


@dataclass(frozen=True, kw_only=True)
class ClippedAboveAlone(ClippedVotes):
    """The paper's formula."""

    def votes(self, scores: NDArray[np.float32]) -> NDArray[np.int64]:
        return np.minimum(scores, self.most).astype(np.int64)


def test_clipped_above_alone_a_cosine_of_minus_one_moves_twice_the_threshold() -> None:
    rule = ClippedAboveAlone(similarity=PLAIN, threshold=0.5)
    given = _each(rule, _texts(PLAIN), _texts(PLAIN))
    assert np.abs(given).max() > 1.9 * rule.sensitivity(NULL)


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_a_person_with_many_documents_moves_no_more_than_one(
    rule: VoteRule, tmp_path: Path
) -> None:
    texts = _texts(rule.similarity)
    batch = asked(rule.similarity, texts[:6])
    rest, names = texts[:4], ["a", "b", "a", "c"]
    base = summed(write_corpus(tmp_path / "a.jsonl", rest, names), rule, batch, unit="user")
    people = [[texts[0]] * 40, texts, [written((-1, -1))] * 3, [texts[1], texts[5], texts[7]]]
    whole = []
    for documents in people:
        mixed = [*rest[:2], *documents, *rest[2:]]
        users = [*names[:2], *["person"] * len(documents), *names[2:]]
        path = write_corpus(tmp_path / "b.jsonl", mixed, users)
        whole.append(summed(path, rule, batch, unit="user", workers=2) - base)
        assert _moved(rule, whole[-1]) <= rule.sensitivity(NULL)
    for one, other in itertools.combinations(whole, 2):
        assert _moved(rule, one - other) <= rule.sensitivity(ONE)
    assert any(one.any() for one in whole)


@pytest.mark.parametrize("rule", [RULES[0], RULES[2], RULES[9]], ids=["clipped", "soft", "centred"])
def test_sums_are_the_same_bits_for_any_number_of_workers(rule: VoteRule, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    texts = [written(rng.normal(size=2).tolist(), WORDS[i % 3]) for i in range(3000)]
    path = write_corpus(tmp_path / "a.jsonl", texts, [f"u{i % 700}" for i in range(3000)])
    batch = asked(rule.similarity, texts[:16])
    for unit in ("document", "user"):
        one = summed(path, rule, batch, unit=unit)
        np.testing.assert_array_equal(one, summed(path, rule, batch, unit=unit, workers=4))
        assert one.any()


def test_votes_are_means_of_what_the_paper_sums(tmp_path: Path) -> None:
    texts = [written(v) for v in ((1, 0), (0, 1), (1, 1), (-1, 0))]
    rule = ClippedVotes(similarity=PLAIN, threshold=0.8)
    path = write_corpus(tmp_path / "a.jsonl", texts)
    found = summed(path, rule, asked(PLAIN, [written((1, 0)), written((0, 0))])) / rule.unit
    np.testing.assert_allclose(found, [0.8 + math.sqrt(0.5), 0], atol=1e-3)
    soft = SoftVotes(similarity=PLAIN, temperature=0.5)
    found = summed(path, soft, asked(PLAIN, [written((1, 0)), written((0, 1))])) / SHARES
    expected = np.zeros(2)
    for vector in ((1, 0), (0, 1), (math.sqrt(0.5),) * 2, (-1, 0)):
        shares = np.exp(np.array(vector) / 0.5)
        expected += shares / shares.sum()
    np.testing.assert_allclose(found, expected, atol=0.01)
    nearest = summed(path, NearestVotes(similarity=PLAIN), asked(PLAIN, texts)) / SHARES
    np.testing.assert_array_equal(nearest, [1, 1, 1, 1])
    centred = CentredVotes(similarity=PLAIN, clip_norm=2)
    found = summed(path, centred, asked(PLAIN, [written((1, 0)), written((0, 1))])) / centred.unit
    np.testing.assert_allclose(found, [-0.5, 0.5], atol=1e-3)


def test_one_person_moves_the_sum_of_vectors_by_the_radius(tmp_path: Path) -> None:
    texts = [written(vector) for vector in DIRECTIONS]
    path = write_corpus(tmp_path / "a.jsonl", texts, ["one"] * len(texts))
    for unit, most in (("user", 1), ("document", len(texts))):
        held = voters(path, None, PLAIN, unit=unit)
        norm = np.linalg.norm(held[0].vector_sum().astype(float))
        assert norm <= most * embedding_sensitivity(NULL) == most * RADIUS
    assert embedding_sensitivity(ONE) == 2 * RADIUS


def test_an_empty_share_and_zero_vectors_vote_for_nothing(tmp_path: Path) -> None:
    rule = RULES[0]
    path = write_corpus(tmp_path / "a.jsonl", [written((0, 0))] * 3)
    batch = asked(PLAIN, [written((1, 0))])
    np.testing.assert_array_equal(summed(path, rule, batch, workers=8), [0])
    path.write_text("nothing that can be read\n")
    for structured in (rule, RULES[5]):
        found = summed(path, structured, asked(structured.similarity, [written((1, 0), " A: b")]))
        np.testing.assert_array_equal(found, [0])
    assert not voters(path, None, PLAIN)[0].vector_sum().any()


ODD = {
    "empty": b'{"text": ""}',
    "no words": b'{"text": "... !"}',
    "no UTF-8": b'{"text": "a ward \xff\xfe of beds"}',
    "half a pair": b'{"text": "a ward \\ud800"}',
    "10 MB": b'{"text": "' + b"ward " * 2_000_000 + b'"}',
    "there already": b'{"text": "two beds in a ward"}',
}
HASHED = Similarity(dimension=32)


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("rule", _rules(HASHED), ids=NAMES[: len(_rules(HASHED))])
def test_an_odd_document_is_a_vote_like_others_or_none(
    rule: VoteRule, name: str, tmp_path: Path
) -> None:
    encoder = HashedEncoder(dimension=32)
    batch = ["beds in a ward", "the ward", "drugs and doses"]
    synthetic = HASHED.synthetic(encoder.encode(batch), turn_statistics(batch))
    others = [b'{"text": "two beds in a ward"}', b'{"text": "a dose of a drug"}']

    def votes(records: list[bytes]) -> NDArray[np.int64]:
        path = tmp_path / "a.jsonl"
        path.write_bytes(b"".join(one + b"\n" for one in records))
        ref = CorpusRef(path=str(path))
        spec = voter.VoterSpec(ref=ref, encoder=encoder, similarity=HASHED, rule=rule)
        return voter.Voter(spec).votes(synthetic)

    given = votes([*others, ODD[name]]) - votes(others)
    assert _moved(rule, given) <= rule.sensitivity(NULL)
    if name == "there already":
        np.testing.assert_array_equal(given, votes(others[:1]))
    elif name in ("empty", "no words"):  # zero vectors: as near to all texts
        assert len(set(given[1:].tolist())) == 1
        assert given.any() == isinstance(rule, SoftVotes | NearestVotes)
    else:
        assert given.any()


def test_rules_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigError, match="threshold"):
        ClippedVotes(similarity=PLAIN, threshold=1.5)
    with pytest.raises(ConfigError, match="temperature"):
        SoftVotes(similarity=PLAIN, temperature=0)
    with pytest.raises(ConfigError, match="clip_norm"):
        CentredVotes(similarity=PLAIN, clip_norm=100)


@pytest.mark.parametrize("rule", _rules(PLAIN), ids=NAMES[: len(_rules(PLAIN))])
def test_a_person_of_many_documents_is_asked_in_parts(
    rule: VoteRule, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in memory at once does not follow from how much somebody wrote."""
    texts = [written(direction) for direction in DIRECTIONS] * 5
    people = ["one"] * (len(texts) - 4) + ["two"] * 3 + ["three"]
    path, batch = write_corpus(tmp_path / "a.jsonl", texts, people), asked(PLAIN, texts[:6])
    whole = summed(path, rule, batch, unit="user")
    sizes: list[int] = []
    right = Similarity.scores

    def scores(self: Similarity, documents: Rounded, synthetic: Rounded) -> NDArray[np.float32]:
        sizes.append(len(documents.vectors))
        return right(self, documents, synthetic)

    monkeypatch.setattr(voter, "_BLOCK", 4)
    monkeypatch.setattr(Similarity, "scores", scores)
    np.testing.assert_array_equal(summed(path, rule, batch, unit="user"), whole)
    assert max(sizes) == 4


@pytest.mark.parametrize(
    ("rule", "key"), [(ClippedVotes, "threshold"), (CentredVotes, "clip_norm")]
)
def test_what_rounds_to_nothing_is_refused(rule: type[VoteRule], key: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{key}=1e-09 is below .*: raise it"):
        rule(similarity=PLAIN, **{key: 1e-9})
