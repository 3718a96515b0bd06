"""``certificate verify``: whether a certificate holds."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributed_privrl.cli.helptext import command_group, examples
from distributed_privrl.cli.text import show_values
from distributed_privrl.core.errors import VerificationError

if TYPE_CHECKING:
    from distributed_privrl.privacy.verification import Verification

app = command_group(
    "certificate", "Verify certificates.", "privrl certificate verify runs/stays/certificate.json"
)


@app.command(
    "verify",
    epilog=examples(
        "privrl certificate verify runs/stays/certificate.json",
        "privrl certificate verify certificate.json --ledger sqlite:////data/ledger.sqlite",
        "privrl certificate verify runs/demo/run/certificate.json --data runs/demo/datasets",
        "privrl certificate verify certificate.json --allow-missing-outputs",
    ),
)
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="certificate.json")],
    ledger: Annotated[
        str | None,
        typer.Option("--ledger", metavar="URL", help="compare with what was reserved there"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="DIR",
            help="where the outputs lie, a folder or a URI (default: the datasets')",
        ),
    ] = None,
    public_key: Annotated[
        str | None,
        typer.Option("--public-key", metavar="HEX", help="the Ed25519 key that must have signed"),
    ] = None,
    allow_missing_outputs: Annotated[
        bool,
        typer.Option("--allow-missing-outputs", help="check all else where outputs are not found"),
    ] = False,
) -> None:
    """Check that a certificate holds.

    Epsilon is recomputed from the stages alone; digest, status and the hashes of all outputs must
    match, and with --ledger what was reserved there.
    """
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.experiments.directory import RunDirectory
    from distributed_privrl.privacy.ledger import Ledger
    from distributed_privrl.privacy.verification import read_certificate, verify_certificate

    if not file.exists() and RunDirectory(file.parent).config_path.exists():
        raise VerificationError(
            f"no certificate at {file}: the run in {file.parent} is unfinished. `privrl run"
            f" CONFIG.yaml --out {file.parent} --resume` goes on with it, for no new budget"
        )
    store = DatasetStore(data)
    root = store.root
    if store.is_remote:
        outputs = read_certificate(file).outputs
        root = store.folder_of_outputs(output.id for output in outputs)
    with contextlib.ExitStack() as stack:
        opened = None if ledger is None else stack.enter_context(contextlib.closing(Ledger(ledger)))
        verification = verify_certificate(
            file,
            ledger=opened,
            outputs_root=root,
            public_key=public_key,
            allow_missing_outputs=allow_missing_outputs,
        )
    show_values(_findings(verification))
    if verification.outputs_missing:
        typer.echo(
            f"warning: not found and not checked: {', '.join(verification.outputs_missing)}",
            err=True,
        )


def _findings(verification: "Verification") -> dict[str, str]:
    from distributed_privrl.privacy.units import unit_in_words

    certificate = verification.certificate
    outputs = len(verification.outputs_checked)
    return {
        "certificate": "valid",
        "epsilon": f"{verification.epsilon:.4f} recomputed, {certificate.epsilon:.4f} stated",
        "delta": f"{certificate.delta:g}",
        "protects": "; ".join(
            dict.fromkeys(
                f"each {unit_in_words(stage.unit)} of {stage.dataset} ({stage.relation})"
                for stage in certificate.stages
            )
        ),
        "assumptions": ", ".join(
            dict.fromkeys(name for stage in certificate.stages for name in stage.assumptions)
        )
        or "none",
        "outputs": f"{outputs} of {outputs + len(verification.outputs_missing)} unchanged",
        "ledger": "agrees"
        if verification.ledger_checked
        else "not compared: a consistent rewrite of the whole file would pass; give --ledger",
        "signed by": verification.signed_by or "nobody",
    }
