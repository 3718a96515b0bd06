"""Ensemble clipping: one vector of norm <= C over all members and layers."""

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.privacy.noise import lattice_granularity
from distributed_privrl.updates.ensemble_clipping import EnsembleClip, EnsembleLayout
from distributed_privrl.updates.exact_sums import ExactSum
from distributed_privrl.updates.federated_config import ClipStrategy

STRATEGIES: tuple[ClipStrategy, ...] = ("concatenated", "flat", "per_layer")
LAYOUT = EnsembleLayout(members=3, layers=((8, 4), (20, 5), (10, 2)))


def clip(strategy: ClipStrategy, clip_norm: float | None = 0.7) -> EnsembleClip:
    return EnsembleClip(layout=LAYOUT, clip_norm=clip_norm, strategy=strategy)


def added(owner: EnsembleClip, vectors: np.ndarray) -> np.ndarray:
    """Return what rows add up to, ``(P,)``."""
    total = ExactSum(owner.layout.dimension, owner.clip_norm, like=torch.empty(0))
    owner.add_clipped(vectors.copy(), total)
    return total.total.numpy()


def clipped(owner: EnsembleClip, vectors: np.ndarray) -> np.ndarray:
    """Return what each row adds, ``(U, P)``."""
    return np.stack([added(owner, row[None]) for row in vectors])


def group_masks(strategy: ClipStrategy) -> list[np.ndarray]:
    """Return the coordinates of each group, written out tensor by tensor."""
    masks, start = {}, 0
    for layer, sizes in enumerate(LAYOUT.layers):
        for size in sizes:
            for member in range(LAYOUT.members):
                group = {"concatenated": 0, "flat": member, "per_layer": (member, layer)}[strategy]
                mask = masks.setdefault(group, np.zeros(LAYOUT.dimension, bool))
                mask[start : start + size] = True
                start += size
    return list(masks.values())


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_group_is_scaled_to_its_share_of_the_bound(
    strategy: ClipStrategy, dtype: type
) -> None:
    vectors = (np.random.default_rng(0).normal(size=(5, LAYOUT.dimension)) * 0.03).astype(dtype)
    vectors[:2] *= 100
    masks = group_masks(strategy)
    expected = vectors.astype(np.float64)
    for row in expected:
        for mask in masks:
            row[mask] *= min(1.0, 0.7 / np.sqrt(len(masks)) / np.linalg.norm(row[mask]))
    found = clipped(clip(strategy), vectors)
    np.testing.assert_allclose(found, expected, rtol=1.1e-6, atol=2e-7)
    assert len(masks) == {"concatenated": 1, "flat": 3, "per_layer": 9}[strategy]
    assert np.linalg.norm(found[:2], axis=1).min() > 0.7 * (1 - 1e-5)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_short_vectors_are_added_as_they_are(strategy: ClipStrategy) -> None:
    vectors = np.random.default_rng(0).normal(size=(700, LAYOUT.dimension)).astype(np.float32)
    vectors *= 1e-3
    total = added(clip(strategy), vectors)
    step = lattice_granularity(clip(strategy).clip_norm or 0.0, LAYOUT.dimension)
    rounded = np.rint(vectors.astype(np.float64) / step) * step
    np.testing.assert_array_equal(total, rounded.sum(axis=0))


@settings(max_examples=150, deadline=None)
@given(
    strategy=st.sampled_from(STRATEGIES),
    exponents=st.lists(st.floats(-44, 38), min_size=1, max_size=12),
    clip_norm=st.floats(1e-6, 1e6),
    seed=st.integers(0, 10**6),
)
def test_no_vector_exceeds_the_clip_norm(
    strategy: ClipStrategy, exponents: list[float], clip_norm: float, seed: int
) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.uniform(-1, 1, size=(3, LAYOUT.dimension))
    with np.errstate(over="ignore"):
        scales = 10.0 ** generator.choice(exponents, size=LAYOUT.dimension)
        vectors = (vectors * scales).astype(np.float32)
    for row in clipped(clip(strategy, clip_norm), vectors):
        assert np.linalg.norm(row) <= clip_norm


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("clip_norm", [0.7, None])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_one_bad_number_makes_the_whole_vector_zero(
    strategy: ClipStrategy, clip_norm: float | None, poison: float
) -> None:
    vectors = np.random.default_rng(0).normal(size=(4, LAYOUT.dimension)).astype(np.float32)
    vectors[1, 37] = poison
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = clipped(clip(strategy, clip_norm), vectors)
    assert not found[1].any()
    assert found[[0, 2, 3]].any(axis=1).all()


def test_nothing_is_clipped_without_a_norm() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, LAYOUT.dimension)) * 1e6
    for strategy in STRATEGIES:
        np.testing.assert_array_equal(clipped(clip(strategy, None), vectors), vectors)


def test_norms_are_measured_in_float64() -> None:
    # A float32 sum of squares loses each of these small numbers beside the large one.
    layout = EnsembleLayout(members=1, layers=((1_000_000,),))
    vector = np.full((1, layout.dimension), 1.6e-4, np.float32)
    vector[0, :8] = 1
    total = added(EnsembleClip(layout=layout, clip_norm=1.0), vector)
    assert 1 - 1e-5 < np.linalg.norm(total) <= 1


def test_a_module_is_an_ensemble_of_one() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.SiLU(), nn.Linear(4, 2))
    module[2].bias.requires_grad_(False)
    assert EnsembleLayout.of(module) == EnsembleLayout(members=1, layers=((12, 4), (8,)))


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, float("inf"), float("nan")])
def test_a_clip_norm_must_be_above_zero(clip_norm: float) -> None:
    with pytest.raises(ConfigError, match="clip_norm"):
        clip("flat", clip_norm)


def test_unknown_strategies_are_refused() -> None:
    with pytest.raises(ConfigError, match="strategy must be concatenated"):
        clip("whole")  # type: ignore[arg-type]


def test_a_norm_is_taken_for_larger_than_float64_may_have_measured_it() -> None:
    own = clip("concatenated")
    nearly = np.array([[own.bound * (1 - 2.0**-40)], [own.bound * (1 - 2.0**-20)]])
    assert (own.factors(nearly) < 1).tolist() == [[True], [False]]
