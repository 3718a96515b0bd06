"""Reports: one self-contained HTML page, and the same numbers as JSON beside it.

There are two kinds, never mixed. A public report takes its values by type: public ones, or ones
released by a mechanism that was charged. A private report may hold anything, is marked NOT FOR
RELEASE, is readable by its owner alone and lies in a folder called ``private``.
"""

import base64
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import jinja2

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.files import write_atomically
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.evaluation.explanation import explain, explain_stages
from distributed_privrl.evaluation.figures import AnyFigure, PublicFigure, ReleasedFigure
from distributed_privrl.privacy.metrics import PublicValue, ReleasedValue, Scalar

ReportValue = PublicValue | ReleasedValue | Scalar
"""What a report takes; a public one refuses bare scalars."""
Audience = Literal["public", "private"]

WHOLE_TRAJECTORIES = "Whole trajectories"
"""Title of what a report says of lengths and returns."""
TRAINED_AGENTS = "Agents trained on the dataset"
"""Title of what agents learned from released rows."""
_SCHEMA = 1
_REASONS = 16
"""Things that rows are not useful for which a page shows at once; it folds further ones."""
_PNG_MAGIC = b"\x89PNG"


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One number (or text) of a report.

    Args:
        name: what it is, in words.
        value: a `PublicValue` or `ReleasedValue`; a private report takes bare scalars too.
        explanation: how to read it.
        reference: what to hold it against, e.g. the same of another real sample; None: nothing. It
            is public, released or bare as ``value`` is.
    """

    name: str
    value: ReportValue
    explanation: str = ""
    reference: ReportValue = None


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a report.

    Args:
        title: its heading.
        explanation: what a newcomer needs to read it.
        metrics: its numbers.
        figures: its figures.
        not_useful: what the rows are not useful for, each with the reason; the report says it in
            red beside its certificate, the page the first ones at once and the others where they
            are unfolded. It is computed from real rows: for private reports alone.
        notes: what the owner of the rows should look at first; it stands there, too, and is for
            private reports alone.
    """

    title: str
    explanation: str = ""
    metrics: Sequence[Metric] = ()
    figures: Sequence[AnyFigure] = ()
    not_useful: Sequence[str] = ()
    notes: Sequence[str] = ()


def write_report(
    html_path: Path,
    json_path: Path,
    *,
    title: str,
    certificate: Mapping[str, Any],
    sections: Sequence[Section],
    audience: Audience = "public",
) -> None:
    """Write the report as HTML and JSON, both whole or not at all.

    Args:
        html_path: where the page goes.
        json_path: where the numbers go.
        title: heading of the report.
        certificate: content of ``certificate.json``.
        sections: what to report, in order.
        audience: ``public`` may leave the house; ``private`` must not.

    Raises:
        TypeError: a value of a public report is neither public nor released by type, or it says
            what the rows are not useful for, or has notes to their owner.
        UnsafeError: a private report would be written outside a folder called ``private``, or a
            public one shows what no entry of a valid ``certificate`` paid for.
        StorageError: a file cannot be written.

    Privacy:
        A public report computes nothing: it prints values that are public or were charged when
        they were released, to an entry that the certificate names. No unit, relation or event of
        its own.
    """
    if audience not in ("public", "private"):
        raise ConfigError(f"audience must be public or private, got {audience!r}")
    if audience == "private":
        for path in (html_path, json_path):
            if path.parent.name != "private":
                raise UnsafeError(
                    f"{path} would hold values that are not for release: write it to"
                    f" {path.parent / 'private' / path.name}"
                )
    else:
        _check_paid(certificate, sections)
    mode = 0o600 if audience == "private" else 0o644
    page = render_html(title, certificate, sections, audience)
    numbers = report_json(title, certificate, sections, audience)
    write_atomically(json_path, json.dumps(numbers, indent=2, allow_nan=False) + "\n", mode=mode)
    write_atomically(html_path, page, mode=mode)


def _check_paid(certificate: Mapping[str, Any], sections: Sequence[Section]) -> None:
    """Check that a valid certificate names every entry that is said to have paid."""
    valid = certificate.get("status") == "valid"
    paid = (certificate.get("ledger_entries") or ()) if valid else ()
    metrics = [one for section in sections for one in section.metrics]
    shown: list[tuple[str, object]] = [
        (one.name, value) for one in metrics for value in (one.value, one.reference)
    ]
    shown += [(one.caption, one) for section in sections for one in section.figures]
    for name, value in shown:
        if (entry := getattr(value, "ledger_entry", None)) is not None and entry not in paid:
            raise UnsafeError(
                f"{name!r} is said to be paid by ledger entry {entry}, which no valid certificate"
                " of this report names: write it to a private report"
            )


def report_json(
    title: str, certificate: Mapping[str, Any], sections: Sequence[Section], audience: Audience
) -> dict[str, Any]:
    """Return the content of ``report.json``; see `write_report`.

    Raises:
        TypeError: a value of a public report is neither public nor released by type.
    """
    return {
        "schema": _SCHEMA,
        "title": title,
        "audience": audience,
        "not_for_release": audience == "private",
        "certificate": {
            key: certificate.get(key) for key in ("status", "method", "epsilon", "delta", "digest")
        },
        **{key: texts for key, texts in _to_the_owner(sections, audience).items() if texts},
        "sections": [
            {
                "title": section.title,
                "explanation": section.explanation,
                "metrics": [_metric_json(metric, audience) for metric in section.metrics],
                "figures": [_checked(figure, audience).caption for figure in section.figures],
            }
            for section in sections
        ],
    }


@cache
def _page() -> jinja2.Template:
    """Return the page's template, which is compiled once a process."""
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.from_string(resources.files(__package__).joinpath("report.html").read_text())


def render_html(
    title: str, certificate: Mapping[str, Any], sections: Sequence[Section], audience: Audience
) -> str:
    """Return the page; see `write_report`."""
    to_owner = _to_the_owner(sections, audience)
    return _page().render(
        title=title,
        audience=audience,
        certificate=certificate,
        meaning=explain(certificate),
        in_words=explain_stages(certificate),
        stages=[_stage(stage) for stage in certificate.get("stages", ())],
        assumptions=_assumptions(certificate),
        not_useful=to_owner["not_useful_for"][:_REASONS],
        further=to_owner["not_useful_for"][_REASONS:],
        notes=to_owner["notes"],
        sections=[
            {
                "title": section.title,
                "explanation": section.explanation,
                "metrics": [_metric_row(metric, audience) for metric in section.metrics],
                "compared": any(metric.reference is not None for metric in section.metrics),
                "figures": [
                    {
                        "caption": figure.caption,
                        "source": _data_uri(_checked(figure, audience).image),
                    }
                    for figure in section.figures
                ],
            }
            for section in sections
        ],
    )


def _checked(figure: AnyFigure, audience: Audience) -> AnyFigure:
    if type(figure) in (PublicFigure, ReleasedFigure) or audience == "private":
        return figure
    raise TypeError(
        f"figure {figure.caption!r} is a {type(figure).__name__}: a public report takes"
        " PublicFigure or ReleasedFigure only"
    )


def _to_the_owner(sections: Sequence[Section], audience: Audience) -> dict[str, list[str]]:
    """Return what the rows are not useful for, and notes, of all sections."""
    found = {
        "not_useful_for": [text for section in sections for text in section.not_useful],
        "notes": [text for section in sections for text in section.notes],
    }
    if any(found.values()) and audience != "private":
        raise TypeError(
            "what rows are not useful for, and notes to their owner, are computed from real rows:"
            " write them to a private report"
        )
    return found


def _unwrap(name: str, shown: ReportValue, audience: Audience) -> Any:
    """Return the bare value; numbers that are not finite become None."""
    value: Any = shown
    if type(value) in (PublicValue, ReleasedValue):
        value = value.value
    elif audience != "private":
        raise TypeError(
            f"{name!r} is a bare {type(value).__name__}: a public report takes PublicValue"
            " or ReleasedValue only"
        )
    elif isinstance(value, Sensitive):
        raise TypeError(f"{name!r} is sensitive and was not opened for a private report")
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _origin(value: Any) -> dict[str, str]:
    if isinstance(value, ReleasedValue):
        return {"kind": "released", "ledger_entry": value.ledger_entry}
    return {"kind": "public" if isinstance(value, PublicValue) else "private"}


def _values(metric: Metric, audience: Audience) -> dict[str, Any]:
    found = {"value": _unwrap(metric.name, metric.value, audience)}
    if metric.reference is not None:
        found["reference"] = _unwrap(metric.name, metric.reference, audience)
    return found


def _metric_json(metric: Metric, audience: Audience) -> dict[str, Any]:
    note = {"explanation": metric.explanation} if metric.explanation else {}
    return {"name": metric.name} | _values(metric, audience) | note | _origin(metric.value)


def _metric_row(metric: Metric, audience: Audience) -> dict[str, str]:
    values = _values(metric, audience)
    origin = _origin(metric.value)
    entry = origin.get("ledger_entry")
    return {
        "name": metric.name,
        "value": _text(values["value"]),
        "reference": _text(values.get("reference", "")),
        "origin": f"{origin['kind']}, ledger entry {entry}" if entry else origin["kind"],
        "explanation": metric.explanation,
    }


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _data_uri(image: bytes) -> str:
    kind = "png" if image.startswith(_PNG_MAGIC) else "svg+xml"
    return f"data:image/{kind};base64,{base64.b64encode(image).decode()}"


def _stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {**stage, "events": [_event(event) for event in stage.get("events", ())]}


def _event(event: Mapping[str, Any]) -> str:
    parts = [f"{key} {_event_value(value)}" for key, value in event.items() if key != "kind"]
    return f"{event.get('kind')}: {', '.join(parts)}"


def _event_value(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return value if isinstance(value, str) else json.dumps(value)


def _assumptions(certificate: Mapping[str, Any]) -> list[str]:
    stages = certificate.get("stages", ())
    return sorted({text for stage in stages for text in stage.get("assumptions", ())})
