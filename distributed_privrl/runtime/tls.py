"""Ray's TLS: whether the environment asks for it, and whether it can work.

With ``RAY_USE_TLS=1`` Ray encrypts what its processes say to each other, and each side shows a
certificate that ``RAY_TLS_CA_CERT`` has signed.
"""

import os
import ssl
import stat
from collections.abc import Mapping
from pathlib import Path

from distributed_privrl.core.errors import ConfigError, UnsafeError

SWITCH = "RAY_USE_TLS"
CERTIFICATE, KEY, AUTHORITY = "RAY_TLS_SERVER_CERT", "RAY_TLS_SERVER_KEY", "RAY_TLS_CA_CERT"
_FILES = (CERTIFICATE, KEY, AUTHORITY)


def check_tls(environment: Mapping[str, str] = os.environ) -> bool:
    """Return whether Ray is told to use TLS, after its files have been looked at.

    Args:
        environment: of this process, which Ray's processes inherit.

    Raises:
        ConfigError: a file is not named or not there, or they do not belong together.
        UnsafeError: files are named and TLS is off, or others can read the private key.
    """
    named = [name for name in _FILES if environment.get(name)]
    if environment.get(SWITCH, "0").lower() not in ("1", "true"):
        if named:
            raise UnsafeError(
                f"{', '.join(named)} is set and {SWITCH} is not 1: Ray would not encrypt; set"
                f" {SWITCH}=1 on every node, or unset it"
            )
        return False
    missing = [name for name in _FILES if name not in named]
    if missing:
        raise ConfigError(f"{SWITCH}=1 needs {', '.join(missing)}: name the files, in PEM form")
    paths = {name: Path(environment[name]) for name in _FILES}
    for name, path in paths.items():
        if not path.is_file():
            raise ConfigError(f"no file at {name}={path}")
    if stat.S_IMODE(paths[KEY].stat().st_mode) & 0o077:
        raise UnsafeError(f"{KEY}={paths[KEY]} can be read by others: chmod 600 {paths[KEY]}")
    try:
        ssl.create_default_context(cafile=paths[AUTHORITY]).load_cert_chain(
            paths[CERTIFICATE], paths[KEY], password=""
        )
    except (ssl.SSLError, ValueError, OSError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"{', '.join(_FILES)} are no certificate, its key and its authority: {reason}"
        ) from error
    return True
