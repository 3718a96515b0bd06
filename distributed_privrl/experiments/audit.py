"""Audits: what an attacker makes of a finished run, and what one round of its mechanism shows.

They inform; no guarantee rests on them.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed_privrl.core.config import RunConfig, RuntimeConfig
from distributed_privrl.core.errors import ConfigError, StorageError
from distributed_privrl.core.executor import Executor, LocalExecutor
from distributed_privrl.core.files import make_writable, write_atomically
from distributed_privrl.core.progress import Progress, silent
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.evaluation.canaries import ROWS_OF_A_UNIT, CanaryRound, canary_round
from distributed_privrl.evaluation.canary_rows import WORKERS
from distributed_privrl.evaluation.neighbours import Copying
from distributed_privrl.evaluation.report import Section, write_report
from distributed_privrl.experiments.attacks import (
    Attacked,
    attack_members,
    attacked_sides,
    detect_copies,
)
from distributed_privrl.experiments.audit_checks import check_held_out, check_new, given_held_out
from distributed_privrl.experiments.audit_report import (
    ChargedRound,
    canary_facts,
    canary_section,
    compared_section,
    copying_facts,
    copying_section,
    membership_facts,
    membership_section,
)
from distributed_privrl.experiments.comparison import attempted
from distributed_privrl.experiments.directory import RunDirectory
from distributed_privrl.experiments.registry import load_config, method_named, plan_run
from distributed_privrl.privacy.calibration import PrivateRound
from distributed_privrl.privacy.certificate import Certificate
from distributed_privrl.privacy.events import PoissonGaussianEvent
from distributed_privrl.privacy.ledger import Ledger
from distributed_privrl.privacy.verification import read_certificate, verify_certificate
from distributed_privrl.stages.round_plan import RoundPlan

CANARY_FILE = "canary.json"
AUDIT_FILE = "audit.json"
_NO_ROUNDS = "not applicable: no private rounds of Poisson-sampled sums are charged"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What an audit found.

    Args:
        canary: the canary round, or in words why there is none.
        membership: the attack by loss, or why there is none; None for a configuration. Private.
        copying: the copying detector, or why there is none; None for a configuration. Private.
    """

    canary: CanaryRound | str
    membership: Attacked | str | None = None
    copying: Copying | str | None = None


StartExecutor = Callable[[RuntimeConfig], Executor]
"""Starts what a run's ``runtime`` asks for; whoever asked closes it."""


def in_this_process(_: RuntimeConfig) -> Executor:
    """Return an executor of this process, whatever is asked for."""
    return LocalExecutor()


def audit_configuration(
    config: RunConfig,
    *,
    out: Path,
    start_executor: StartExecutor = in_this_process,
    progress: Progress = silent,
    insecure_key: int | None = None,
) -> Audit:
    """Run the canary round of a configuration and write ``canary.json``.

    Args:
        config: of any method; its number of units must be declared.
        out: a new folder; where the run would be on a cluster, all nodes must reach it.
        start_executor: starts what the canary round runs on.
        progress: told where the work is.
        insecure_key: seeded noise, for tests.

    Raises:
        ConfigError: ``out`` is not empty, the number of units is not declared, or the method has
            no private rounds.
        StorageError: ``out`` cannot be written to, or another version wrote the run.

    Privacy: reads no data.
    """
    check_new(out)
    plan = plan_run(config)
    if not isinstance(plan, RoundPlan) or plan.mechanism is None or plan.budget is None:
        raise ConfigError(
            f"method {config.method} with privacy.epsilon={config.privacy.epsilon} has no private"
            " rounds: there is nothing to audit"
        )
    make_writable(out)
    charged = ChargedRound(
        mechanism=plan.mechanism, delta=plan.budget.delta, own_clipping=_own_clipping(config)
    )
    canary = _write_canary(config, charged, out, start_executor, progress, insecure_key)
    return Audit(canary=canary)


def audit_run(
    run_directory: Path,
    *,
    out: Path,
    held_out: str | None,
    against: Path | None = None,
    store: DatasetStore | None = None,
    ledger_url: str | None = None,
    start_executor: StartExecutor = in_this_process,
    progress: Progress = silent,
    insecure_key: int | None = None,
) -> Audit:
    """Attack a finished run, and run the canary round of its mechanism.

    Args:
        run_directory: the ``--out`` of a finished run.
        out: a new folder.
        held_out: id of a dataset of the same source whose rows the run has not seen.
        against: an earlier audit's folder to compare with.
        store: datasets.
        ledger_url: of the run; a valid certificate is compared with it where it is given, and it is
            read where bounds were found with noise.
        start_executor: starts what the canary round runs on; attacks read rows in this process.
        progress: told where the work is.
        insecure_key: seeded noise of the canary round, for tests.

    Raises:
        ConfigError: the folder holds no finished run, ``held_out`` is missing or shares rows or
            units with the run's own datasets, or ``out`` is not empty.
        VerificationError: the certificate was changed; or it is valid, and does not agree with
            itself, the files that it names or the ledger.
        StorageError: ``out`` cannot be written to.

    Privacy: whatever depends on a real row goes to ``out/private/``, errors of the attacks too.
    Nothing is released and nothing is charged. ``canary.json`` depends on the certificate alone.
    """
    directory, store = RunDirectory(run_directory), store or DatasetStore()
    if not directory.certificate.exists():
        raise ConfigError(f"{run_directory} holds no finished run: give a --out of privrl run")
    directory.check_format()
    directory.check_ran()
    check_new(out)
    certificate = _verified(directory, store, ledger_url)
    config = load_config(directory.config_path)
    held_out = given_held_out(held_out)
    check_held_out(config, held_out, store)
    earlier = None if against is None else read_audit(against)
    make_writable(out)
    charged = _charged_round(certificate, config)
    canary: CanaryRound | str = _NO_ROUNDS
    if charged is not None:  # before a real row is read: neither it nor its time depends on one
        canary = _write_canary(config, charged, out, start_executor, progress, insecure_key)
    attacked, copies = _attacks(config, directory, store, held_out, ledger_url, progress)
    facts = {
        "run": str(run_directory),
        "unit": config.data.unit,
        "epsilon": certificate.epsilon,
        "membership": membership_facts(attacked),
        "copying": copying_facts(copies),
    }
    section = canary_section(canary, charged)
    _write_private(out, certificate, section, attacked, copies, facts, earlier)
    return Audit(canary=canary, membership=attacked, copying=copies)


def _attacks(
    config: RunConfig,
    directory: RunDirectory,
    store: DatasetStore,
    held_out: str,
    ledger_url: str | None,
    progress: Progress,
) -> tuple[Attacked | str, Copying | str]:
    """Return what both attacks found, or why there is nothing; progress is the same either way."""
    progress("reading rows", 0, 1)
    sides = attempted(lambda: attacked_sides(config, store, held_out))
    progress("reading rows", 1, 1)
    progress("membership attack", 0, 1)
    attacked = attempted(
        lambda: (
            sides
            if isinstance(sides, str)
            else attack_members(config, directory, store, ledger_url, sides)
        )
    )
    progress("membership attack", 1, 1)
    progress("copying detector", 0, 1)
    copies = attempted(
        lambda: sides if isinstance(sides, str) else detect_copies(config, store, sides)
    )
    progress("copying detector", 1, 1)
    return attacked, copies


def read_audit(folder: Path) -> dict[str, Any]:
    """Return the facts of an audit of a run.

    Raises:
        ConfigError: the folder holds none.
        StorageError: it is damaged.
    """
    path = RunDirectory(folder).private / AUDIT_FILE
    if not path.is_file():
        raise ConfigError(f"{folder} holds no audit of a run: give a --out of privrl audit RUN_DIR")
    try:
        return dict(json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise StorageError(f"cannot read {path}: {error}; audit that run again") from error


def _verified(directory: RunDirectory, store: DatasetStore, ledger_url: str | None) -> Certificate:
    """Return a run's certificate; one that is valid is verified, with the ledger if it is given."""
    certificate = read_certificate(directory.certificate)
    if certificate.status != "valid":
        return certificate
    root = store.folder_of_outputs(output.id for output in certificate.outputs)
    with contextlib.ExitStack() as stack:
        ledger = None
        if ledger_url is not None:
            ledger = stack.enter_context(contextlib.closing(Ledger(ledger_url)))
        checked = verify_certificate(directory.certificate, ledger=ledger, outputs_root=root)
    return checked.certificate


def _charged_round(certificate: Certificate, config: RunConfig) -> ChargedRound | None:
    """Return the private round that the certificate states, if there is one."""
    for stage in certificate.stages:
        for event in stage.events:
            if isinstance(event, PoissonGaussianEvent) and stage.clip_norm is not None:
                mechanism = PrivateRound(
                    clip_norm=stage.clip_norm,
                    noise_multiplier=event.noise_multiplier,
                    sampling_probability=event.sampling_probability,
                    relation=stage.relation,
                )
                return ChargedRound(
                    mechanism=mechanism, delta=stage.delta, own_clipping=_own_clipping(config)
                )
    return None


def _own_clipping(config: RunConfig) -> bool:
    """Say whether the method's rounds clip by a rule that canaries do not go through."""
    rule = method_named(config.method).inspection.own_clipping
    return rule is not None and rule(config)


def _write_canary(
    config: RunConfig,
    charged: ChargedRound,
    out: Path,
    start_executor: StartExecutor,
    progress: Progress,
    insecure_key: int | None,
) -> CanaryRound:
    """Run the canary round where the run would be, with its CPUs shared by the audit's workers."""
    progress("canary round", 0, 1)
    rows = ROWS_OF_A_UNIT if method_named(config.method).inspection.whole_units else 1
    cpus = config.runtime.least_workers * config.runtime.cpus_per_worker / WORKERS
    asked = {"workers": WORKERS, "cpus_per_worker": cpus, "gpus_per_worker": 0.0}
    executor = start_executor(config.runtime.model_copy(update=asked))
    try:
        found = canary_round(
            charged.mechanism, rows=rows, executor=executor, work=out, insecure_key=insecure_key
        )
    finally:
        executor.close()
    facts = canary_facts(found, charged)
    write_atomically(out / CANARY_FILE, json.dumps(facts, indent=2) + "\n")
    progress("canary round", 1, 1)
    return found


def _write_private(
    out: Path,
    certificate: Certificate,
    canary: Section,
    attacked: Attacked | str,
    copies: Copying | str,
    facts: dict[str, Any],
    earlier: dict[str, Any] | None,
) -> None:
    directory = RunDirectory(out)
    directory.write_private(AUDIT_FILE, json.dumps(facts, indent=2) + "\n")
    sections = [membership_section(attacked, unit=facts["unit"]), copying_section(copies), canary]
    if earlier is not None:
        sections.append(compared_section(facts, earlier))
    write_report(
        directory.private_report,
        directory.private / "report.json",
        title=f"Audit of {facts['run']}",
        certificate=certificate.to_dict(),
        sections=sections,
        audience="private",
    )
