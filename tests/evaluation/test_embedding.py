import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError
from distributed_privrl.evaluation.embedding import embed


def test_principal_components_by_hand() -> None:
    # Standardised columns x and y with correlation 3/5: axes (1, 1) and (1, -1) over sqrt 2.
    rows = np.array([[2.0, 2.0], [-2.0, -2.0], [1.0, -1.0], [-1.0, 1.0]])
    found = embed({"real": rows, "synthetic": np.array([[4.0, 4.0]])})
    scale = rows[:, 0].std()
    real = found.points["real"] * scale / 2**0.5
    np.testing.assert_allclose(real[:, 0], [2, -2, 0, 0], atol=1e-12)
    np.testing.assert_allclose(np.abs(real[:, 1]), [0, 0, 1, 1], atol=1e-12)
    synthetic = found.points["synthetic"] * scale / 2**0.5
    np.testing.assert_allclose(synthetic, [[4, 0]], atol=1e-12)
    assert found.axes == ("component 1 (80% of variance)", "component 2 (20% of variance)")


def test_other_datasets_do_not_turn_the_picture() -> None:
    source = np.random.default_rng(0)
    real = source.normal(size=(50, 4)) * [4, 2, 1, 1]
    one = embed({"real": real, "synthetic": source.normal(size=(5, 4)) * 100})
    np.testing.assert_array_equal(one.points["real"], embed({"real": real}).points["real"])


def test_neighbours_stay_neighbours_in_tsne() -> None:
    source = np.random.default_rng(1)
    near, far = source.normal(size=(30, 5)), source.normal(size=(30, 5)) + 20
    first = embed({"near": near, "far": far}, method="tsne", seed=3)
    again = embed({"near": near, "far": far}, method="tsne", seed=3)
    np.testing.assert_array_equal(first.points["far"], again.points["far"])
    gap = np.linalg.norm(first.points["near"].mean(0) - first.points["far"].mean(0))
    assert gap > 2 * max(points.std() for points in first.points.values())
    assert first.axes[0] == "t-SNE 1"


def test_wrong_inputs_are_named() -> None:
    with pytest.raises(ConfigError, match="at least one dataset"):
        embed({})
    with pytest.raises(ConfigError, match="three or more"):
        embed({"real": np.eye(2)})
    with pytest.raises(ConfigError, match="pca or tsne, got 'umap'"):
        embed({"real": np.eye(4)}, method="umap")  # type: ignore[arg-type]
