"""Processes of a private selection for tests on Ray: they talk, and some of them die."""

import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.worlds.choosing import QuickWorker


def kept_by_ray(known: set[Path], worker: type) -> list[tuple[str, str]]:
    """Return what Ray keeps of the output of processes of the pool that are not known yet."""
    import ray

    time.sleep(2)  # what is written as a process ends
    logs = Path(ray._private.worker._global_node.get_session_dir_path()) / "logs"
    texts = {path: path.read_text() for path in logs.glob("*worker-*")}
    assert not any("a trial" in text for text in texts.values()), "Ray keeps what a trial said"
    own = {path for path, text in texts.items() if worker.__name__ in text and path not in known}
    known |= own
    return sorted((path.suffix, texts[path]) for path in own)


class TalkingWorker(QuickWorker):
    """A process whose trials talk, by every way that there is."""

    def _tried(self, overrides: Any, folder: Path) -> Any:
        print("a trial")
        os.write(1, b"a trial\n")
        os.write(2, b"a trial\n")
        logging.getLogger("distributed_privrl.trials").error("a trial")
        warnings.warn("a trial", stacklevel=1)
        return super()._tried(overrides, folder)


class DyingWorker(QuickWorker):
    """A process that dies of a trial."""

    def _tried(self, overrides: Any, folder: Path) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


class FailingWorker(TalkingWorker):
    """A process whose trials fail but for the first one."""

    def _tried(self, overrides: Any, folder: Path) -> Any:
        kept = super()._tried(overrides, folder) if self._best is None else None
        if kept is None:
            raise ValueError("a trial fails")
        return kept


class WatchedWorker(TalkingWorker):
    """A process that notes what of its trials would reach Ray, or a disk, beside its memory."""

    NOTES = "notes.txt"

    def __init__(self, spec: Any) -> None:
        super().__init__(spec)
        self._inside, self._own = False, Path(spec.memory)
        self._watch_ray()
        sys.addaudithook(self._written)

    def _tried(self, overrides: Any, folder: Path) -> Any:
        self._inside = True
        try:
            return super()._tried(overrides, folder)
        finally:
            self._inside = False

    def _note(self, what: str) -> None:
        if self._inside:
            self._inside = False
            with (self._own.parent / self.NOTES).open("a") as notes:
                notes.write(f"{what}\n")
            self._inside = True

    def _watch_ray(self) -> None:
        import ray
        from ray.actor import ActorClass
        from ray.experimental import internal_kv
        from ray.remote_function import RemoteFunction
        from ray.util.metrics import Metric

        def watched(owner: Any, name: str, told: Callable[..., bool] = lambda *_: True) -> None:
            right = getattr(owner, name)

            def noted(*about: Any, **more: Any) -> Any:
                if told(*about):
                    self._note(f"{owner.__name__}.{name}")
                return right(*about, **more)

            setattr(owner, name, noted)

        for name in ("put", "init", "get", "wait"):
            watched(ray, name)
        for name in ("from_items", "read_parquet", "from_numpy"):
            watched(ray.data, name)
        watched(ActorClass, "_remote")
        watched(RemoteFunction, "_remote")
        watched(internal_kv, "_internal_kv_put")
        watched(Metric, "_record", lambda metric, *_: not metric._discard_metric)

    def _written(self, event: str, about: tuple[Any, ...]) -> None:
        """Note a file that is opened for writing, or a folder that is made, outside of memory."""
        if not self._inside or event not in ("open", "os.mkdir", "os.rename", "os.symlink"):
            return
        path = about[1] if event in ("os.rename", "os.symlink") else about[0]
        writes = event != "open" or about[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if not writes or not isinstance(path, str | bytes | os.PathLike):
            return
        where = Path(os.fsdecode(path))
        compiled = "__pycache__" in where.parts  # code, whatever the rows
        if where != Path(os.devnull) and not compiled and not where.is_relative_to(self._own):
            self._note(f"{event} {where}")
