"""Metrics as events for TensorBoard: what `metrics_record` lets through, and no time of day."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from distributed_privrl.core.files import atomic_path
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, metrics_record

NAME = "events.out.tfevents"
"""TensorBoard finds files by the last word; what it usually adds are time, host and process."""
_VERSION = "brain.Event:2"
_STAGE = "stage"
_HPARAMS = "_hparams_/session_start_info"


def write_events(
    path: Path,
    lines: Iterable[Mapping[str, PublicValue | ReleasedValue]],
    *,
    searched: Mapping[str, PublicValue] | None = None,
    steps: Sequence[int] | None = None,
) -> None:
    """Write the numbers of metrics as scalar events, all at once; the same metrics, the same bytes.

    Numbers of a line that names its stage are grouped by it.

    Args:
        path: of the file.
        lines: of metrics.
        searched: values of a trial, for TensorBoard's table of hyperparameters.
        steps: of the lines, public; None: a line's number is its step.

    Raises:
        TypeError: a value says neither that it is public nor who paid for it.
        StorageError: the file cannot be written.

    Privacy: as ``metrics.jsonl``. Times of events tell how long private steps took, so that each
    has its step in place of the time.
    """
    records = [metrics_record(**values) for values in lines]
    values = metrics_record(**(searched or {}))
    from tensorboardX.proto.event_pb2 import Event  # imports torch: not for a plan or a refusal
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.record_writer import RecordWriter

    events = [Event(file_version=_VERSION)]
    if values:
        events.append(Event(summary=Summary(value=[_session(values)])))
    for step, record in zip(steps or range(len(records)), records, strict=True):
        scalars = [Summary.Value(tag=tag, simple_value=one) for tag, one in _numbers(record)]
        events.append(Event(step=step, wall_time=step, summary=Summary(value=scalars)))
    with atomic_path(path) as unfinished:
        writer = RecordWriter(str(unfinished.absolute()))  # a relative "s3:" is no folder to it
        for event in events:
            writer.write(event.SerializeToString(deterministic=True))
        writer.close()


def _numbers(record: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    group = f"{record[_STAGE]}/" if _STAGE in record else ""
    for name, value in record.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{group}{name}", float(value)


def _session(values: Mapping[str, Any]) -> Any:
    """Return what TensorBoard's table of hyperparameters is made of."""
    from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData, SessionStartInfo
    from tensorboardX.proto.summary_pb2 import Summary, SummaryMetadata

    session = SessionStartInfo()
    for name, value in values.items():
        if isinstance(value, bool):
            session.hparams[name].bool_value = value
        elif isinstance(value, int | float):
            session.hparams[name].number_value = value
        else:
            session.hparams[name].string_value = str(value)
    content = HParamsPluginData(session_start_info=session)
    plugin = SummaryMetadata.PluginData(
        plugin_name="hparams", content=content.SerializeToString(deterministic=True)
    )
    return Summary.Value(tag=_HPARAMS, metadata=SummaryMetadata(plugin_data=plugin))
