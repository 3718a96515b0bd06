"""A corpus of notes with a budget, a tiny language model, and runs of `dprft` over them."""

import json
from pathlib import Path
from typing import Any, ClassVar

from distributed_privrl.core.config import validate
from distributed_privrl.data.corpus_datasets import FILE, CorpusSchema, import_corpus
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.methods.dprft.config import DprftConfig, FineTuningConfig, TextConfig
from distributed_privrl.privacy.units import Relation
from tests.worlds.overrides import changed, parsed
from tests.worlds.world import World

NOTES, PEOPLE, CANARY = "clinic/notes-v0", 12, "zanzibarcanary"
TEMPLATE = """
notes:
  topic: topic
  stages: [{makes: topic, choices: [beds, drugs, wards]}]
  gate: {least_words: 2, most_repetition: 1.0}
  prompt: "A note on {topic}: "
"""


class Notes(World):
    """Notes of some people, of two each."""

    dataset, key = NOTES, 7
    allowed: ClassVar[dict[str, Any]] = {
        **{"epsilon": 20.0, "delta": 1e-3, "unit": "author"},
        "relation": Relation.REPLACE_WITH_NULL,
    }

    def __init__(self, folder: Path, master: DatasetStore | None = None) -> None:
        from tests.text.small import language  # skips where the extra `text` is missing

        super().__init__(folder, master)
        self.templates, self.language = folder / "templates.yaml", folder / "language"
        self.templates.write_text(TEMPLATE)
        language().save(self.language)
        if master is not None:
            return
        path = folder / "notes.jsonl"
        rows = [
            {"text": f"{CANARY} note {i} about bed {i % 5}", "author": f"a{i % PEOPLE}"}
            for i in range(2 * PEOPLE)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        schema = validate(CorpusSchema, {"text": {"unit": "author"}}, source="test")
        import_corpus(path, schema, self.store, NOTES)
        path.unlink()

    def config(self, **changes: Any) -> TextConfig:
        """Return a run; ``section__key=value`` changes it."""
        values = {
            "method": "dprft",
            "data": {"sensitive": NOTES, "unit": "author", "units": PEOPLE},
            "privacy": {"epsilon": 4.0, "delta": 1e-4},
            "model": {"language": str(self.language), "dimension": 32},
            "training": {
                "steps": 3,
                "prompts_per_step": 4,
                "samples": 2,
                "spare": 1,
                "most_tokens": 12,
                "options": {"checkpoint_every": 2, "epochs": 1},
                "prompts": {"template": "notes", "file": str(self.templates), "count": 6},
            },
            "output": {"size": 5},
            "runtime": {"workers": 2, "executor": "local"},
        }
        return parsed(changed(values, changes), DprftConfig)

    def check_leaks(self, said: str) -> None:
        """Fail if a file but the corpus, or what was said, holds a word of it."""
        files = [one for one in self.folder.rglob("*") if one.is_file() and one.name != FILE]
        assert len(files) > 10
        for one in files:
            assert CANARY.encode() not in one.read_bytes(), one
        assert CANARY not in said


class LearnedNotes(Notes):
    """The same, and runs of `dp_fine_tuning` over them."""

    def config(self, **changes: Any) -> FineTuningConfig:
        """Return a run; ``section__key=value`` changes it."""
        values = super().config().model_dump(mode="json") | {
            "method": "dp_fine_tuning",
            "model": {"language": str(self.language)},
            "training": {
                "rounds": 4,
                "expected_batch_size": 6,
                "clip_norm": 0.1,
                "spare": 2,
                "block_rounds": 1,
                "most_tokens": 12,
                "prompts": {"template": "notes", "file": str(self.templates), "count": 6},
            },
        }
        return parsed(changed(values, changes), FineTuningConfig)
