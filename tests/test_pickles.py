"""Nothing that was pickled outside is loaded, wherever it comes from.

Ray's own channels pickle: calls between processes of a cluster, and the state of Tune in a sweep's
folder. Both are behind Ray's token, or in the operator's own folder (SECURITY.md names them).
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import distributed_privrl
from distributed_privrl.agents.policy import Policy
from distributed_privrl.core.errors import PrivRLError
from distributed_privrl.core.yaml_files import parse_yaml
from distributed_privrl.methods.value_iteration.policy import GreedyPolicy
from tests.worlds.array_files import Trap

ROOT = Path(distributed_privrl.__file__).parent
MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
SAFE = {"torch.load": "weights_only", "np.load": "allow_pickle", "numpy.load": "allow_pickle"}
"""Calls that may unpickle, and the argument that must say whether: ``True`` and ``False``."""
UNSAFE = {"eval", "exec", "pd.read_pickle", "yaml.load", "yaml.unsafe_load", "yaml.full_load"}
TUNE = {"tune.Tuner.restore"}
TUNE_FILE = "runtime/tuning.py"


def trees() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(ROOT.rglob("*.py")):
        yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())


def wrong_in(tree: ast.AST) -> Iterator[str]:
    """Yield what a module imports or calls that may run what a file says."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from {name.name.partition(".")[0] for name in node.names} & MODULES
        elif isinstance(node, ast.ImportFrom):
            yield from {str(node.module).partition(".")[0]} & MODULES
        elif isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if called in UNSAFE | TUNE:
                yield called
            if called in SAFE and given.get(SAFE[called]) != str(called == "torch.load"):
                yield called


def test_no_module_unpickles_what_comes_from_outside() -> None:
    found = {(name, what) for name, tree in trees() for what in wrong_in(tree)}
    assert found == {(TUNE_FILE, what) for what in TUNE}


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from joblib import load",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "eval(text)",
        "yaml.load(text, Loader)",
    ],
)
def test_the_search_sees_what_is_unsafe(text: str) -> None:
    assert list(wrong_in(ast.parse(text)))


@pytest.mark.parametrize("load", [Policy.load, GreedyPolicy.load])
def test_a_pickle_under_the_name_of_a_policy_is_not_run(tmp_path: Path, load: object) -> None:
    path = tmp_path / "policy.safetensors"
    torch.save({"x": Trap()}, path)
    assert callable(load)
    with pytest.raises(PrivRLError):
        load(path)


def test_yaml_makes_no_objects() -> None:
    with pytest.raises(PrivRLError, match="could not determine a constructor"):
        parse_yaml("!!python/object/apply:os.abort []", source="x")
