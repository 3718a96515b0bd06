"""``certificate verify``: whether a certificate holds."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distributed_privrl.cli.helptext import command_group, examples
from distributed_privrl.cli.text import show_values
from distributed_privrl.core.errors import VerificationError

if TYPE_CHECKING:
    from distributed_privrl.core.places import Place
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
        "privrl certificate verify s3://clinic/runs/stays/certificate.json",
        "privrl certificate verify certificate.json --allow-missing-outputs",
    ),
)
def verify(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="certificate.json: a path, s3://.. or gs://..")
    ],
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
    from distributed_privrl.core.places import place_of
    from distributed_privrl.data.store import DatasetStore
    from distributed_privrl.privacy.ledger import Ledger
    from distributed_privrl.privacy.verification import verify_certificate

    with contextlib.ExitStack() as stack:
        path = stack.enter_context(_fetched(place_of("FILE", file)))
        store = DatasetStore(data)
        root = store.root
        if store.is_remote:
            root = store.folder_of_outputs(_outputs(path))
        opened = None if ledger is None else stack.enter_context(contextlib.closing(Ledger(ledger)))
        verification = verify_certificate(
            path,
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


@contextlib.contextmanager
def _fetched(place: "Place") -> Iterator[Path]:
    """Yield the path of a certificate, in a store with the outputs that lie beside it."""
    from distributed_privrl.core.places import ObjectUri
    from distributed_privrl.data.plain_copies import plain_copy
    from distributed_privrl.experiments.directory import RunDirectory

    with contextlib.ExitStack() as stack:
        if isinstance(place, Path):
            path, config = place, RunDirectory(place.parent).config_path
        else:
            folder, _, name = place.rpartition("/")
            copy = stack.enter_context(plain_copy(ObjectUri(folder)))
            path = copy.fetch(name)
            config = copy.fetch(RunDirectory(copy.folder).config_path.name)
            for output in _outputs(path) if path.is_file() else ():
                copy.fetch(output)
        if not path.exists() and config.exists():
            shown = place.parent if isinstance(place, Path) else folder
            raise VerificationError(
                f"no certificate at {place}: the run in {shown} is unfinished. `privrl run"
                f" CONFIG.yaml --out {shown} --resume` goes on with it, for no new budget"
            )
        yield path


def _outputs(path: Path) -> list[str]:
    from distributed_privrl.privacy.verification import read_certificate

    return [output.id for output in read_certificate(path).outputs]


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
