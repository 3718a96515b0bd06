"""The quick demo, its certificate verified, and altered copies refused: ``make smoke``."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import minari

from distributed_privrl.data.metadata import CERTIFICATE_KEY

VERIFICATION_FAILED = 6

os.environ.setdefault("RAY_worker_niceness", "0")  # 15: beside `make check` workers would starve


def privrl(*arguments: str, expect: int = 0) -> str:
    """Run the command line and return what it printed."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("privrl")), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != expect:
        raise SystemExit(
            f"privrl {' '.join(arguments)}: exit {done.returncode}, not {expect}\n"
            f"{done.stdout}{done.stderr}"
        )
    return done.stdout


def altered(certificate: Path, folder: Path) -> dict[str, Path]:
    """Write copies of the certificate with one thing changed each."""
    copies = {}
    for name in ("epsilon", "count", "noise_multiplier"):
        content = json.loads(certificate.read_text())
        if name == "epsilon":
            content["epsilon"] *= 0.5
        else:
            content["stages"][-1]["events"][0][name] *= 2
        copies[name] = folder / f"{name}.json"
        copies[name].write_text(json.dumps(content))
    return copies


def main() -> None:
    """Run the smoke test in a folder of its own."""
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "demo"
        print(privrl("demo", "--quick", "--out", str(out)))
        certificate = out / "run" / "certificate.json"
        ledger = f"sqlite:///{out / 'ledger.sqlite'}"
        data = ("--data", str(out / "datasets"))
        print(privrl("certificate", "verify", str(certificate), "--ledger", ledger, *data))
        for what, copy in altered(certificate, folder).items():
            privrl("certificate", "verify", str(copy), *data, expect=VERIFICATION_FAILED)
            print(f"a copy with another {what} is refused")
        elsewhere = (str(certificate), "--data", name)
        privrl("certificate", "verify", *elsewhere, expect=VERIFICATION_FAILED)
        privrl("certificate", "verify", *elsewhere, "--allow-missing-outputs")
        print("a certificate whose dataset is not there is refused unless that is allowed")
        dataset = json.loads(certificate.read_text())["outputs"][0]["id"].split("/data/")[0]
        os.environ["MINARI_DATASETS_PATH"] = str(out / "datasets")
        loaded = minari.load_dataset(dataset)
        if loaded.storage.metadata[CERTIFICATE_KEY]["status"] != "valid":
            raise SystemExit("the dataset's metadata hold no valid certificate")
        print(f"{dataset} loads in plain Minari: {loaded.total_steps} steps, certificate inside")
    print(f"smoke: 1 passed in {time.monotonic() - start:.0f} s")


if __name__ == "__main__":
    main()
