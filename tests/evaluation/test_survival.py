"""Relations that are there are found kept, and those that are gone lost."""

import numpy as np
import pandas as pd
import pytest

from distributed_privrl.data.named_rows import CATEGORY
from distributed_privrl.evaluation.survival import (
    Survived,
    columns_kept,
    pairs_kept,
    prediction_kept,
    rare_kept,
    strengths_kept,
)


def table(seed: int, rows: int = 4000) -> pd.DataFrame:
    source = np.random.default_rng(seed)
    size = source.normal(size=rows)
    ward = np.where(source.random(rows) < 0.02, "rare", np.where(size > 0, "a", "b"))
    return pd.DataFrame(
        {
            "size": size,
            "weight": size + 0.3 * source.normal(size=rows),
            "ward": pd.Series(ward, dtype=object).astype(CATEGORY),
            "gain": 2 * size + (ward == "a") + 0.5 * source.normal(size=rows),
            "luck": source.normal(size=rows),
        }
    )


def shuffled(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the same columns without a relation between them."""
    source = np.random.default_rng(1)
    return pd.DataFrame(
        {name: frame[name].sample(frac=1, random_state=source).to_numpy() for name in frame}
    ).astype({"ward": CATEGORY})


def by_name(found: list[Survived]) -> dict[str, bool]:
    return {one.name: one.kept for one in found}


def test_another_draw_keeps_everything() -> None:
    real, other = table(1), table(2)
    assert set(by_name(columns_kept(real, other))) == set(real.columns)
    pairs = pairs_kept(real, other)
    assert pairs[0].name in ("size and weight", "size and gain")
    assert not any("luck" in one.name for one in pairs), "nothing was planted there"
    for found in (columns_kept(real, other), pairs, rare_kept(real, other)):
        assert found
        assert all(one.kept for one in found)
    assert [one.name for one in rare_kept(real, other)] == ["ward rare"]
    given = prediction_kept(real, other, target="gain", given=["size", "ward"])
    assert given.kept
    assert (given.before, given.after) == pytest.approx((0.95, 0.95), abs=0.02)


def test_columns_alone_keep_no_pair_and_no_prediction() -> None:
    real = table(1)
    alone = shuffled(real)
    assert all(one.kept for one in columns_kept(real, alone))
    pairs = pairs_kept(real, alone)
    assert pairs
    assert not any(one.kept for one in pairs)
    assert not prediction_kept(real, alone, target="gain", given=["size", "ward"]).kept


def test_a_relation_the_other_way_round_is_lost() -> None:
    real = table(1)
    turned = real.assign(weight=-real["weight"])
    assert not by_name(pairs_kept(real, turned))["size and weight"]


def test_what_is_moved_or_gone_is_lost() -> None:
    real = table(1)
    moved = real.assign(size=real["size"] + 1)
    assert not by_name(columns_kept(real, moved))["size"]
    gone = real[real["ward"] != "rare"]
    (lost,) = rare_kept(real, gone)
    assert (lost.kept, lost.after) == (False, 0.0)
    many = pd.concat([real, *[real[real["ward"] == "rare"]] * 3])
    assert not rare_kept(real, many)[0].kept


def test_strong_relations_may_be_kept_where_weak_ones_are_lost() -> None:
    def drawn(seed: int, weak: float) -> pd.DataFrame:
        source = np.random.default_rng(seed)
        cause, *noise = source.normal(size=(4, 4000))
        mixed = [
            s * cause + np.sqrt(1 - s**2) * one
            for s, one in zip((0.8, weak), noise[:2], strict=True)
        ]
        return pd.DataFrame({"cause": cause, "near": mixed[0], "far": mixed[1]})

    real = drawn(1, 0.25)
    assert [one.kept for one in strengths_kept(real, drawn(2, 0.25))] == [True, True]
    strong, weak = strengths_kept(real, drawn(2, 0.0))
    assert (strong.name, strong.kept) == ("0.65 and more, numbers: 1 of 1", True)
    assert (weak.name, weak.after, weak.kept) == ("0.15 to 0.35, numbers: 0 of 2", 0.0, False)
    nobody = real.assign(near=real["cause"].to_numpy()[::-1], far=real["far"].to_numpy()[::-1])
    assert strengths_kept(nobody[["cause", "far"]], real[["cause", "far"]]) == []


def test_relations_are_counted_by_kinds_of_columns() -> None:
    real = table(1)
    names = [one.name for one in strengths_kept(real, table(2))]
    assert "0.65 and more, numbers: 3 of 3" in names
    assert any(", a category and a number: " in name for name in names)
