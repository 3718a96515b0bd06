"""Starting and joining Ray safely: always a token, threads capped, nothing spilled in clear."""

import os
import re
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from distributed_privrl.core import interrupts
from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.files import storage_errors
from distributed_privrl.core.memory import forbid_core_dumps
from distributed_privrl.core.threads import THREAD_ENVIRONMENT, cap_threads
from distributed_privrl.runtime.tls import check_tls

TOKEN_FILE = Path("~/.ray/auth_token")
# Else whoever calls another process keeps an event of it, whatever the called actor's options are:
# the timeline would count private rounds, and time them.
NO_TIMELINE = {"RAY_enable_timeline": "0"}
# Read by Ray when it is imported or when its processes start.
RAY_ENVIRONMENT = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    **NO_TIMELINE,
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
        UnsafeError: the environment switches token authentication off, or as in `check_tls`.
        ConfigError: as in `check_tls`.
    """
    cap_threads()
    forbid_core_dumps()
    check_tls()
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


_HOST_AND_PORT = re.compile(r"([\w.-]+|\[[0-9a-fA-F:.]+\]):([0-9]{1,5})", re.ASCII)
GCS_PORT = 6379
PROBE_SECONDS = 60.0


def cluster_address(given: str | None = None) -> str | None:
    """Return ``host:port`` of the cluster to join; None: a local Ray is started.

    Args:
        given: an address; None or empty reads ``RAY_ADDRESS``. Spaces around it do not count, nor
            does the case of a scheme or of ``local``.

    Raises:
        ConfigError: the address of a dashboard, not of a cluster.
        UnsafeError: anything else whose token mode cannot be probed, such as a Ray Client's
            ``ray://`` (its port does not tell what the cluster's own would) or ``auto``.
    """
    address = (given or os.environ.get("RAY_ADDRESS") or "").strip()
    if address.lower() in ("", "local"):
        return None
    instead = f"give host:port of its head, such as head.internal:{GCS_PORT}"
    if address.lower().startswith(("http://", "https://")):
        raise ConfigError(
            f"the Ray address {address} is a dashboard's: {instead}; `ray job submit` takes a"
            " dashboard's by --address, and RAY_ADDRESS is then unset"
        )
    if _HOST_AND_PORT.fullmatch(address) is None:
        raise UnsafeError(
            f"the Ray address {address} cannot be probed for a token: {instead}"
            " (ray:// and auto are refused)"
        )
    return address


_PROBE = """
import sys
from ray._raylet import GcsClient
from ray.exceptions import AuthenticationError
try:
    GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=10)
except AuthenticationError:
    print("refused")
else:
    print("let in")
"""


def check_token_needed(address: str) -> None:
    """Refuse a cluster unless it turns away a process that shows no token.

    Asked from a process of its own: Ray settles its authentication mode when it is imported.

    Args:
        address: ``host:port`` of the cluster.

    Raises:
        UnsafeError: it lets such a process in, or gives another answer than that the token is
            missing: an error or a silence proves nothing.
        ConfigError: nothing listens at ``address``.
    """
    _check_listens(address)
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")
    }
    # An empty home hides the user's token file.
    environment |= {"RAY_AUTH_MODE": "disabled", "HOME": "/nonexistent"}
    try:
        probe = subprocess.run(
            [sys.executable, "-c", _PROBE, address],
            env=environment,
            capture_output=True,
            text=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        answer = "nothing"
    else:
        said = probe.stdout if probe.returncode == 0 else probe.stderr
        answer = (said.strip().splitlines() or ["nothing"])[-1]
    if answer == "let in":
        raise UnsafeError(
            f"the cluster at {address} lets in anybody who reaches it: start every node with"
            " RAY_AUTH_MODE=token"
        )
    if answer != "refused":
        raise UnsafeError(
            f"whether the cluster at {address} needs a token cannot be told (it answered:"
            f" {answer}): give host:port of its head, {GCS_PORT} unless you chose another port"
        )


def _check_listens(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=10).close()
    except (OSError, OverflowError) as error:
        raise _nothing_answers(address) from error


def _nothing_answers(address: str) -> ConfigError:
    return ConfigError(f"no Ray cluster answers at {address}: start it, or unset RAY_ADDRESS")


def connect(*, address: str | None = None, cpus: float | None = None) -> ModuleType:
    """Start a local Ray, or join the cluster at ``address``; return the ``ray`` module.

    A handler of SIGTERM that this program has set stays: Ray's own would end it on the spot. What
    comes while Ray starts, and has it exit, is handed to ours.

    Args:
        address: see `cluster_address`.
        cpus: logical CPUs of a local Ray (default: the machine's).

    Raises:
        UnsafeError: joining a cluster without a token: who can reach it could read un-noised sums;
            or a Ray that this program did not start. (An actor's was checked by who started it.)
        ConfigError: no cluster answers at ``address``, or it is no cluster's.
    """
    prepare_environment()
    import ray

    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        return ray  # type: ignore[no-any-return]
    cluster = cluster_address(address)
    if cluster is not None:
        check_token_needed(cluster)
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
    if cluster is not None:
        # A local Ray inherits this process' environment; a cluster's nodes do not.
        inlined = {f"RAY_{name}": str(value) for name, value in INLINED.items()}
        variables = dict(THREAD_ENVIRONMENT) | NO_TIMELINE | inlined
        options |= {"address": cluster, "runtime_env": {"env_vars": variables}}
    else:
        _check_shared_memory()
        options |= {
            "address": "local",
            "include_dashboard": False,
            "_system_config": {
                "automatic_object_spilling_enabled": False,
                # Without a token anyone could read how many private rounds there were, and when.
                "enable_metrics_collection": False,
                **INLINED,
            },
        }
        options["num_cpus"] = max(1, round(cpus or os.cpu_count() or 1))
    on_termination = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options)
    except SystemExit as stop:
        if stop.code == signal.SIGTERM and callable(on_termination):
            on_termination(signal.SIGTERM, None)
            interrupts.rest()
        raise
    except ConnectionError as error:
        raise _nothing_answers(str(cluster)) from error
    except ray.exceptions.AuthenticationError as error:
        raise ConfigError(
            f"the cluster at {cluster} does not know this token: give its own as RAY_AUTH_TOKEN,"
            " or the file that holds it as RAY_AUTH_TOKEN_PATH"
        ) from error
    finally:
        if callable(on_termination) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_termination)
    _STARTED.append(cluster or "local")
    return ray  # type: ignore[no-any-return]


def surrounding_group() -> Any:
    """Return the placement group that what this process starts is put into, or None."""
    import ray

    group, context = ray.util.get_current_placement_group(), ray.get_runtime_context()
    return group if context.should_capture_child_tasks_in_placement_group else None


def is_cluster() -> bool:
    """Return whether nodes may join, and leave, where this process starts others.

    None do where Ray is a local one, or in a placement group whose children belong to it.
    """
    return _STARTED != ["local"] and surrounding_group() is None


def has_autoscaler() -> bool:
    """Return whether nodes join by themselves where some are missing: by Ray's autoscaler v2."""
    if not is_cluster():
        return False
    from ray.autoscaler.v2.utils import is_autoscaler_v2

    return bool(is_autoscaler_v2(fetch_from_server=True))


def room() -> dict[str, float]:
    """Return the resources that processes started from this one can have, by name.

    In a trial of a sweep, or whatever else lies in a placement group that its children are put
    into, they are those of its bundles, less what this process has of them; else the cluster's.
    """
    import ray

    group, context = surrounding_group(), ray.get_runtime_context()
    if group is None:
        return dict(ray.cluster_resources())
    found = Counter[str]()
    for bundle in group.bundle_specs:
        found.update(bundle)
    found.subtract({name: context.get_assigned_resources().get(name, 0.0) for name in found})
    return dict(found)


def keep_to_owner() -> None:
    """Let nobody but its owner look into what Ray's libraries keep beside Ray's logs.

    Raises:
        StorageError: the folder cannot be made.
    """
    import ray

    folder = Path(ray._private.worker._global_node.get_session_dir_path()) / "artifacts"
    with storage_errors(f"make {folder}"):
        folder.mkdir(mode=0o700, exist_ok=True)
        folder.chmod(0o700)
