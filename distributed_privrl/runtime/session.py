"""Starting and joining Ray safely: always a token, threads capped, nothing spilled in clear."""

import os
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import threading
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
}
# Partial sums travel inside the reply: cheaper than the object store, and they never lie in it.
INLINED = {
    "max_direct_call_object_size": 64 * 2**20,
    "task_rpc_inlined_bytes_limit": 256 * 2**20,
}

_STARTED: list[str] = []
SHARED_MEMORY = Path("/dev/shm")
SHARED_MEMORY_BYTES = 256 * 2**20


def _check_shared_memory() -> None:
    """Refuse a machine on which Ray would keep sums before noise in files on disk."""
    if not SHARED_MEMORY.exists():
        return
    free = shutil.disk_usage(SHARED_MEMORY).free
    if free < SHARED_MEMORY_BYTES:
        raise UnsafeError(
            f"{SHARED_MEMORY} has {free // 2**20} MiB free: Ray would keep sums before noise on"
            " disk; give it 1 GiB (docker run --shm-size=1g), or set runtime.executor to local"
        )


def prepare_environment() -> None:
    """Set what Ray reads when it is imported: call it before that.

    Raises:
        UnsafeError: the environment switches token authentication off.
    """
    cap_threads()
    if os.environ.get("RAY_AUTH_MODE", "token") != "token":
        raise UnsafeError(
            "RAY_AUTH_MODE is not token: whoever reaches such a Ray could read sums before noise;"
            " unset it here, and set it to token on every node of a cluster"
        )
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


_PROBE = """
import sys
from ray._raylet import GcsClient
GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=10)
"""


def answers_without_token(address: str) -> bool:
    """Say whether a cluster lets in a process that shows no token.

    Asked from a process of its own: Ray settles its authentication mode when it is imported.

    Args:
        address: ``host:port`` of the cluster.
    """
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")
    }
    # An empty home hides the user's token file.
    environment |= {"RAY_AUTH_MODE": "disabled", "HOME": "/nonexistent"}
    probe = subprocess.run(
        [sys.executable, "-c", _PROBE, address.removeprefix("ray://")],
        env=environment,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return probe.returncode == 0


def connect(*, address: str | None = None, cpus: float | None = None) -> ModuleType:
    """Start a local Ray, or join the cluster at ``address``; return the ``ray`` module.

    A handler of SIGTERM that this program has set stays: Ray's own would end it on the spot.

    Args:
        address: a cluster's address; None reads ``RAY_ADDRESS``, else starts a local Ray.
        cpus: logical CPUs of a local Ray (default: the machine's).

    Raises:
        UnsafeError: joining a cluster without a token: who can reach it could read un-noised sums;
            or a Ray that this program did not start. (An actor's was checked by who started it.)
        ConfigError: no cluster answers at ``address``.
    """
    address = address or os.environ.get("RAY_ADDRESS")
    joins = address is not None and address != "local"
    if address == "auto":
        raise ConfigError("RAY_ADDRESS=auto cannot be checked: give the cluster's host:port")
    prepare_environment()
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        return ray  # type: ignore[no-any-return]
    if address is not None and joins and answers_without_token(address):
        raise UnsafeError(
            f"the cluster at {address} lets in anybody who reaches it: start every node with"
            " RAY_AUTH_MODE=token"
        )
    if ray.is_initialized():
        if not _STARTED:
            raise UnsafeError(
                "a Ray that this program did not start is running in this process, with unknown"
                " spilling and authentication: call ray.shutdown() first"
            )
        return ray  # type: ignore[no-any-return]
    options: dict[str, object] = {
        "log_to_driver": False,
        "logging_level": "ERROR",
    }
    if joins:
        # A local Ray inherits this process' environment; a cluster's nodes do not.
        inlined = {f"RAY_{name}": str(value) for name, value in INLINED.items()}
        variables = dict(THREAD_ENVIRONMENT) | inlined
        options |= {"address": address, "runtime_env": {"env_vars": variables}}
    else:
        _check_shared_memory()
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_system_config": {"automatic_object_spilling_enabled": False, **INLINED},
        }
        options["num_cpus"] = max(1, round(cpus or os.cpu_count() or 1))
    on_termination = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except ConnectionError as error:
        raise ConfigError(f"no Ray cluster answers at {address}: start it or unset it") from error
    finally:
        if callable(on_termination) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)
    _STARTED.append(address or "local")
    return ray  # type: ignore[no-any-return]
