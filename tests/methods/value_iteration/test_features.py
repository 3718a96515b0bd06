import pickle
from pathlib import Path

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.methods.value_iteration.features import FeatureMap

RNG = np.random.default_rng(0)
PSI = RNG.normal(size=(5, 3)) / 5


def maps() -> tuple[FeatureMap, FeatureMap]:
    """The same phi = e_a (x) psi(s), in blocks and written out."""
    blocks = FeatureMap(table=PSI, actions=2)
    phi = np.zeros((5, 2, 6))
    for action in range(2):
        phi[:, action, 3 * action : 3 * action + 3] = PSI
    return blocks, FeatureMap(table=phi)


def block_diagonal(blocks: np.ndarray) -> np.ndarray:
    matrix = np.zeros((6, 6))
    for number, block in enumerate(blocks):
        matrix[3 * number : 3 * number + 3, 3 * number : 3 * number + 3] = block
    return matrix


def test_blocks_are_the_same_map_as_the_table_written_out() -> None:
    blocks, whole = maps()
    assert (blocks.shape, blocks.blocks, blocks.width, blocks.dimension) == ((5, 2), 2, 3, 6)
    assert (whole.shape, whole.blocks, whole.width, whole.dimension) == ((5, 2), 1, 6, 6)
    weights = RNG.normal(size=(5, 2))
    weights[1, 1] = 0
    np.testing.assert_allclose(block_diagonal(blocks.gram(weights)), whole.gram(weights)[0])
    pairs = np.arange(10)
    np.testing.assert_array_equal(blocks.block_of(pairs), pairs % 2)
    assert not whole.block_of(pairs).any()
    for pair, (mine, other) in enumerate(
        zip(blocks.vectors(pairs), whole.vectors(pairs), strict=True)
    ):
        np.testing.assert_array_equal(mine, other.reshape(2, 3)[pair % 2])
    parameters = RNG.normal(size=(2, 3))
    np.testing.assert_allclose(blocks.predict(parameters), whole.predict(parameters.reshape(1, 6)))
    matrices = RNG.normal(size=(2, 3, 3))
    np.testing.assert_allclose(
        blocks.quadratic(matrices), whole.quadratic(block_diagonal(matrices)[None])
    )


def test_the_table_written_out_does_what_a_loop_does() -> None:
    _, whole = maps()
    weights = RNG.normal(size=(5, 2))
    gram, sums = np.zeros((6, 6)), np.zeros(6)
    for state in range(5):
        for action in range(2):
            phi = whole.table[state, action]
            gram += weights[state, action] * np.outer(phi, phi)
            sums += weights[state, action] * phi
    np.testing.assert_allclose(whole.gram(weights)[0], gram, atol=1e-15)
    np.testing.assert_allclose(whole.predict(sums[None])[3, 1], whole.table[3, 1] @ sums)


@pytest.mark.parametrize("excess", [0.0, 1e-12, 9e-10])
def test_norms_do_not_exceed_one_even_by_rounding(excess: float) -> None:
    features = FeatureMap(table=np.array([[[0.6, 0.8]]]) * (1 + excess))
    assert np.linalg.norm(features.table, axis=-1).max() <= 1
    np.testing.assert_allclose(features.table[0, 0], [0.6, 0.8], rtol=1e-8)


def test_what_is_no_feature_map_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"L2 norms <= 1, got 1\.00001"):
        FeatureMap(table=np.array([[1.00001]]), actions=2)
    with pytest.raises(ConfigError, match="finite"):
        FeatureMap(table=np.array([[np.nan]]), actions=2)
    with pytest.raises(ConfigError, match=r"got shape \(2, 2\) and actions=None"):
        FeatureMap(table=np.eye(2))
    with pytest.raises(ConfigError, match=r"got shape \(1, 2, 2\) and actions=3"):
        FeatureMap(table=np.eye(2)[None], actions=3)
    with pytest.raises(ConfigError, match="actions must be at least 1, got 0"):
        FeatureMap(table=np.eye(2), actions=0)


def test_maps_are_read_only_and_survive_pickle_and_files(tmp_path: Path) -> None:
    for features in maps():
        features.save(tmp_path / "features.safetensors")
        read = FeatureMap.load(tmp_path / "features.safetensors")
        for copy in (read, pickle.loads(pickle.dumps(features))):
            np.testing.assert_array_equal(copy.table, features.table)
            assert copy.actions == features.actions
        with pytest.raises(ValueError, match="read-only"):
            features.table[0] = 0


def test_files_that_hold_no_map_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "features.safetensors"
    with pytest.raises(StorageError, match="cannot read"):
        FeatureMap.load(path)
    path.write_bytes(b"nothing")
    with pytest.raises(StorageError, match="holds no feature map"):
        FeatureMap.load(path)
