"""Whether a released cell gives its members away: the attack of ``privrl audit`` by loss.

Members are the positives. Those held out are a further recording of the same simulator, so that
only recorded tables are attacked.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.cells import store_of
from benchmarks.tables.source import RecordedTable
from distributed_privrl.experiments.audit import audit_run
from distributed_privrl.experiments.audit_report import membership_facts

HELD_OUT_SEED = 1000
"""Of the further recording; nothing else has it."""
HELD_OUT_STEPS = 100_000
"""An attack scores some 10,000 rows of each side."""


def attacked(
    table: RecordedTable, run: Path, work: Path, *, out: Path, quick: bool
) -> dict[str, Any]:
    """Return what the attack finds, as figures; none where a method has no losses.

    Args:
        table: that the run protected.
        run: folder of the finished run.
        work: folder of the datasets.
        out: folder of the audit's own files; what a broken attack left there goes.
        quick: a small recording.

    Privacy: rows are simulated and public, so that figures of real rows may be shown.
    """
    store, held_out = store_of(work), f"table/{table.name}-held-out-v0"
    if held_out not in store.ids():
        steps = (
            None if table.steps is None else (min(HELD_OUT_STEPS, table.steps[0]), table.steps[1])
        )
        further = replace(table, seed=HELD_OUT_SEED, steps=steps)
        further.import_into(store, held_out, quick=quick)
    shutil.rmtree(out, ignore_errors=True)
    found = audit_run(run, out=out, held_out=held_out, store=store).membership
    if found is None or isinstance(found, str):
        return {}
    facts = membership_facts(found)
    assert not isinstance(facts, str)
    rates = facts["true_positive_rates"]
    return {
        "attack area": facts["area"]["value"],
        "attack area, low": facts["area"]["low"],
        "attack area, high": facts["area"]["high"],
        "attack p": facts["p_value"],
        **{f"true positives at {at}": rate and rate["value"] for at, rate in rates.items()},
        "members scored": facts["members"],
        "held out scored": facts["non_members"],
    }
