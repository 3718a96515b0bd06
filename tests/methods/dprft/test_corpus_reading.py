"""Who opens the corpus in a run: workers alone, and not the process that starts it."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

pytest.importorskip("transformers", reason="extra text is not installed: pip install '.[text]'")

from distributed_privrl.core.errors import StorageError
from distributed_privrl.core.executor import LocalExecutor, LocalWorkerGroup
from distributed_privrl.data.corpus_datasets import FILE, HASH, corpus_of
from tests.worlds.notes import NOTES, LearnedNotes, Notes

SMALL = {
    Notes: {"training__steps": 1, "output__size": 1},
    LearnedNotes: {"training__rounds": 1, "output__size": 1},
}


class Watch:
    """Knows whether a worker is at work, and who opens the corpus' file meanwhile."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.depth, self.by_workers, self.by_driver = 0, 0, 0
        begin, batches = pq.ParquetFile.__init__, pq.ParquetFile.iter_batches
        digest = hashlib.file_digest

        def begun(file: Any, source: Any, *more: Any, **named: Any) -> None:
            file.own_source = source
            begin(file, source, *more, **named)

        def read(file: Any, *more: Any, **named: Any) -> Any:
            self._note(file.own_source)
            return batches(file, *more, **named)

        def hashed(opened: Any, *more: Any) -> Any:
            self._note(opened.name)
            return digest(opened, *more)

        patch.setattr(pq.ParquetFile, "__init__", begun)
        patch.setattr(pq.ParquetFile, "iter_batches", read)
        patch.setattr(hashlib, "file_digest", hashed)

    def _note(self, source: Any) -> None:
        if str(source).endswith(FILE):
            self.by_workers += self.depth > 0
            self.by_driver += self.depth == 0


class Watched(LocalExecutor):
    """Says when the one process is a worker's, as it would be on Ray."""

    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def start(self, worker_cls: type, shards: Sequence[Any], **how: Any) -> LocalWorkerGroup:
        watch = self._watch
        if "Server" in worker_cls.__name__:  # asks workers itself
            return super().start(worker_cls, shards, **how)

        class Inside:
            def __init__(self, shard: Any) -> None:
                watch.depth += 1
                try:
                    self._worker = worker_cls(shard)
                finally:
                    watch.depth -= 1

            def __getattr__(self, name: str) -> Any:
                own = getattr(self._worker, name)

                def called(**arguments: Any) -> Any:
                    watch.depth += 1
                    try:
                        return own(**arguments)
                    finally:
                        watch.depth -= 1

                return called

        return super().start(Inside, shards, **how)


@pytest.mark.parametrize("world_of", [Notes, LearnedNotes])
def test_workers_alone_open_the_corpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_of: type[Notes]
) -> None:
    monkeypatch.setattr(
        "distributed_privrl.experiments.judging.write_reports", lambda *_, **__: None
    )
    world = world_of(tmp_path).budget()
    watch = Watch(monkeypatch)
    world.run(executor=Watched(watch), **SMALL[world_of])
    assert watch.by_workers
    assert not watch.by_driver


@pytest.mark.parametrize("world_of", [Notes, LearnedNotes])
def test_other_documents_end_a_run_before_anything_is_charged(
    tmp_path: Path, world_of: type[Notes]
) -> None:
    world = world_of(tmp_path).budget()
    path = Path(corpus_of(world.store, NOTES).path)
    table = pq.read_table(path)
    pq.write_table(table.slice(1), path)
    (path.parent / HASH).write_text(hashlib.sha256(path.read_bytes()).hexdigest())
    with pytest.raises(StorageError, match="not the file that was imported"):
        world.run()
    assert not world.ledger.entries()
