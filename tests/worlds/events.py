"""Files of events, read record by record as TensorBoard does."""

import struct
from pathlib import Path
from typing import Any

from tensorboardX.proto.event_pb2 import Event
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.record_writer import masked_crc32c


def events_of(path: Path) -> list[Any]:
    """Return the events of a file, whose checksums are looked at."""
    content, found = path.read_bytes(), []
    while content:
        header, (length,) = content[:8], struct.unpack("<Q", content[:8])
        (checked,) = struct.unpack("<I", content[8:12])
        data = content[12 : 12 + length]
        (sum_of,) = struct.unpack("<I", content[12 + length : 16 + length])
        assert (checked, sum_of) == (masked_crc32c(header), masked_crc32c(data))
        found.append(Event.FromString(data))
        content = content[16 + length :]
    return found


def scalars_of(path: Path) -> list[tuple[int, str, float]]:
    """Return step, tag and number of each scalar."""
    return [
        (event.step, value.tag, value.simple_value)
        for event in events_of(path)
        for value in event.summary.value
        if value.WhichOneof("value") == "simple_value"
    ]


def searched_in(path: Path) -> dict[str, Any]:
    """Return the values of a trial, as the table of hyperparameters has them."""
    found = {}
    for event in events_of(path):
        for value in event.summary.value:
            if value.metadata.plugin_data.plugin_name == "hparams":
                session = HParamsPluginData.FromString(value.metadata.plugin_data.content)
                hparams = session.session_start_info.hparams
                found |= {
                    name: getattr(one, one.WhichOneof("kind")) for name, one in hparams.items()
                }
    return found


def as_text(path: Path) -> str:
    """Return all that a file of events holds, an event a line."""
    return "\n".join(" ".join(str(event).split()) for event in events_of(path))
