"""Starting and joining Ray safely: always a token, threads capped, nothing spilled in clear."""

import os
import secrets
import stat
from pathlib import Path
from types import ModuleType

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.threads import THREAD_ENVIRONMENT, cap_threads

TOKEN_FILE = Path("~/.ray/auth_token")
# Read by Ray when it is imported or when its processes start.
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Objects hold clipped sums before noise; Ray would spill them to disk in clear text.
    "RAY_automatic_object_spilling_enabled": "0",
}


def _prepare_environment() -> None:
    cap_threads()
    for name, value in RAY_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    has_token = "RAY_AUTH_TOKEN" in os.environ or "RAY_AUTH_TOKEN_PATH" in os.environ
    token_file = TOKEN_FILE.expanduser()
    if token_file.exists():
        if stat.S_IMODE(token_file.stat().st_mode) & 0o077:
            token_file.chmod(0o600)
    elif not has_token:
        # A token of this process tree alone: Ray itself would write one that everybody can read.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


def connect(*, address: str | None = None, cpus: float | None = None) -> ModuleType:
    """Start a local Ray, or join the cluster at ``address``; return the ``ray`` module.

    Args:
        address: a cluster's address; None reads ``RAY_ADDRESS``, else starts a local Ray.
        cpus: logical CPUs of a local Ray (default: the machine's).

    Raises:
        UnsafeError: joining a cluster without a token: who can reach it could read un-noised sums.
        ConfigError: no cluster answers at ``address``.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    joins = address is not None and address != "local"
    if joins and os.environ.get("RAY_AUTH_MODE", "token") != "token":
        raise UnsafeError(
            "this cluster runs without token authentication: set RAY_AUTH_MODE=token on every node"
        )
    _prepare_environment()
    import ray

    if ray.is_initialized():
        return ray  # type: ignore[no-any-return]
    options: dict[str, object] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    if joins:
        # A local Ray inherits this process' environment; a cluster's nodes do not.
        options |= {"address": address, "runtime_env": {"env_vars": dict(THREAD_ENVIRONMENT)}}
    else:
        options |= {"address": "local", "include_dashboard": False}
        options["num_cpus"] = max(1, round(cpus or os.cpu_count() or 1))
    try:
        ray.init(**options)
    except ConnectionError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: start it or unset it") from error
    return ray  # type: ignore[no-any-return]
