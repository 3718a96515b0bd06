"""Bugs in whose budget is spent: rows or people get another account, or another price."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from distributed_privrl.data import sketch
from distributed_privrl.experiments import accounts, kinship
from distributed_privrl.experiments import run as program
from distributed_privrl.privacy.ledger import budgets, register


def spaces_in_the_fingerprint(patch: pytest.MonkeyPatch) -> None:
    """Declared spaces name rows, as they did once."""
    right = accounts.inspect

    def wrong(store: Any, dataset: str, **keywords: Any) -> Any:
        found = right(store, dataset, **keywords)
        space = f"{store.info(dataset).observation_space}{found.fingerprint}"
        return replace(found, fingerprint=hashlib.sha256(space.encode()).hexdigest())

    patch.setattr(accounts, "inspect", wrong)
    patch.setattr(kinship, "check_unrelated", lambda *_, **__: None)
    patch.setattr(accounts, "check_unrelated", lambda *_, **__: None)


def partition_not_compared(patch: pytest.MonkeyPatch) -> None:
    """The ledger does not look at whose rows they are."""
    for module in (budgets, register):
        patch.setattr(module, "check_partition", lambda *_: None)
    patch.setattr(program, "method_named", _nothing)


def partition_not_made(patch: pytest.MonkeyPatch) -> None:
    """Units are left out of what is compared."""
    right = accounts.inspect

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        return replace(right(*arguments, **keywords), partition="")

    patch.setattr(accounts, "inspect", wrong)
    patch.setattr(program, "method_named", _nothing)


def partition_compared_by_budgets_alone(patch: pytest.MonkeyPatch) -> None:
    """A run starts on whatever units its file names."""
    patch.setattr(register, "check_partition", lambda *_: None)
    patch.setattr(program, "method_named", _nothing)


def no_search_for_overlap(patch: pytest.MonkeyPatch) -> None:
    """Part of a dataset is another dataset."""
    patch.setattr(accounts, "check_unrelated", lambda *_, **__: None)


def one_side_of_the_overlap(patch: pytest.MonkeyPatch) -> None:
    """Rows are looked for in what has an account, and not the other way round."""
    right = sketch.compare

    def wrong(one: sketch.Sketch, other: sketch.Sketch) -> sketch.Overlap:
        found = right(one, other)
        return replace(found, rows_suspicious=found.mine > sketch.SHARED)

    patch.setattr(kinship, "compare", wrong)


def names_not_compared(patch: pytest.MonkeyPatch) -> None:
    """People are told by their rows' numbers alone."""
    patch.setattr(sketch.Overlap, "units_suspicious", False)


def rewards_in_the_sketch(patch: pytest.MonkeyPatch) -> None:
    """Rows are sampled by all of their numbers: other rewards make other rows."""
    right = accounts.inspect
    from distributed_privrl.data import fingerprint

    class Wrong(fingerprint._Hashes):
        def __init__(self, chunk: Any, some: slice) -> None:
            super().__init__(chunk, some)
            self.pairs = self.rows[0]

    def wrong(*arguments: Any, **keywords: Any) -> Any:
        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(fingerprint, "_Hashes", Wrong)
            return right(*arguments, **keywords)

    patch.setattr(accounts, "inspect", wrong)


def _nothing(_: str) -> Any:
    """Return a method that does nothing: a run that is not refused has ended well enough."""

    class Nothing:
        @staticmethod
        def run(config: Any, context: Any) -> None:
            raise AssertionError("a run on the rows as other people's: not refused")

    return Nothing
