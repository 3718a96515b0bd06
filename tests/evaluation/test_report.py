import json
import math
import re
import stat
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from distributed_privrl.core.errors import ConfigError, UnsafeError
from distributed_privrl.core.sensitive import Sensitive
from distributed_privrl.evaluation.explanation import DECLARED_PUBLIC, explain, explain_stages
from distributed_privrl.evaluation.figures import (
    AnyFigure,
    PrivateFigure,
    PublicFigure,
    ReleasedFigure,
)
from distributed_privrl.evaluation.plots import maze_positions
from distributed_privrl.evaluation.report import (
    Metric,
    Section,
    write_report,
)
from distributed_privrl.evaluation.source import Sourced
from distributed_privrl.privacy.events import EVENTS, Event
from distributed_privrl.privacy.metrics import PublicValue
from tests.worlds.answers import answer, released

CERTIFICATE: dict[str, Any] = {
    "schema": 1,
    "status": "valid",
    "method": "privorl_n",
    "epsilon": 2.0,
    "delta": 1e-6,
    "stages": [
        {
            "name": "fine-tune",
            "dataset": "clinic/stays-v0",
            "unit": "trajectory",
            "relation": "replace_with_null",
            "units": 1234,
            "units_source": "declared",
            "accountant": "pld",
            "delta": 1e-6,
            "clip_norm": 1.0,
            "assumptions": ["float64_lattice_noise"],
            "events": [
                {
                    "kind": "poisson_gaussian",
                    "sampling_probability": 0.001,
                    "noise_multiplier": 0.75,
                    "count": 5000,
                }
            ],
        }
    ],
    "outputs": [{"id": "clinic/synthetic-v0", "sha256": "ab12"}],
    "digest": "cd34",
    "ledger_entries": ["entry-9"],
}
IMAGE = maze_positions({"synthetic": np.zeros((3, 2))})


PUBLIC_FIGURE = PublicFigure(image=IMAGE, caption="Where it went")


def section(value: Any, *figures: AnyFigure) -> Section:
    return Section(
        title="Fidelity",
        explanation="Synthetic against public rows.",
        metrics=(Metric(name="marginal", value=value, explanation="1 is the best"),),
        figures=figures,
    )


def write(folder: Path, *sections: Section, **options: Any) -> tuple[str, dict[str, Any]]:
    page, numbers = folder / "report.html", folder / "report.json"
    settings = {"title": "Stays", "certificate": CERTIFICATE, "sections": sections, **options}
    write_report(page, numbers, **settings)
    return page.read_text(), json.loads(numbers.read_text())


class Page(HTMLParser):
    """Collects every address that the page would load, and its open tags."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]


def test_public_report_says_what_the_certificate_says(tmp_path: Path) -> None:
    html, numbers = write(tmp_path, section(PublicValue(0.93125), PUBLIC_FIGURE))
    for text in ("2", "1e-06", "1234 (declared)", "replace_with_null", "clinic/stays-v0", "cd34"):
        assert text in html
    assert "poisson_gaussian: sampling_probability 0.001, noise_multiplier 0.75, count 5000" in html
    assert "float64_lattice_noise" in html
    assert "0.9313" in html
    assert "NOT FOR RELEASE" not in html
    assert numbers["certificate"] == {
        "status": "valid",
        "method": "privorl_n",
        "epsilon": 2.0,
        "delta": 1e-6,
        "digest": "cd34",
    }
    (part,) = numbers["sections"]
    note = "1 is the best"
    assert part["metrics"] == [
        {"name": "marginal", "value": 0.93125, "explanation": note, "kind": "public"}
    ]
    assert part["figures"] == ["Where it went"]
    assert part["explanation"] == "Synthetic against public rows."


def test_page_loads_nothing_from_outside(tmp_path: Path) -> None:
    html, _ = write(tmp_path, section(PublicValue(1.0), PUBLIC_FIGURE))
    page = Page()
    page.feed(html)
    assert len(page.addresses) == 1
    assert all(address.startswith("data:image/png;base64,") for address in page.addresses)
    assert not {"script", "link", "iframe"} & set(page.tags)
    assert "default-src 'none'" in html
    assert "url(" not in html
    assert "prefers-color-scheme: dark" in html


def test_released_values_name_their_ledger_entry(tmp_path: Path) -> None:
    html, numbers = write(tmp_path, section(released(7.5, "entry-9")))
    assert "released, ledger entry entry-9" in html
    assert numbers["sections"][0]["metrics"][0] == {
        "name": "marginal",
        "value": 7.5,
        "explanation": "1 is the best",
        "kind": "released",
        "ledger_entry": "entry-9",
    }


RELEASED_FIGURE = ReleasedFigure(answer=answer(IMAGE, "entry-9"), caption="Samples")


@pytest.mark.parametrize(
    "certificate",
    [
        {**CERTIFICATE, "ledger_entries": ["entry-8"]},
        {**CERTIFICATE, "ledger_entries": []},
        {**CERTIFICATE, "status": "invalid"},
        {**CERTIFICATE, "status": "non_private"},
        {},
    ],
)
@pytest.mark.parametrize(
    "shown",
    [section(released(7.5, "entry-9")), section(PublicValue(1.0), RELEASED_FIGURE)],
)
def test_public_report_shows_what_a_valid_certificate_paid_for(
    tmp_path: Path, shown: Section, certificate: dict[str, Any]
) -> None:
    with pytest.raises(UnsafeError, match="paid by ledger entry entry-9, which no valid"):
        write(tmp_path, shown, certificate=certificate)
    assert not list(tmp_path.iterdir())
    write(tmp_path / "private", shown, certificate=certificate, audience="private")


def test_a_source_says_what_may_leave() -> None:
    made = Sourced.released(answer(2.0, "entry-9"))
    public, private = Sourced.public(2.0), Sourced.private(2.0)
    assert made.then(abs).value(float) == released(2.0, "entry-9")
    assert public.then(abs).value(float) == PublicValue(2.0)
    assert private.then(abs).value(float) == 2.0
    figures = [one.figure(lambda _: IMAGE, "x") for one in (made, public, private)]
    assert [type(one) for one in figures] == [ReleasedFigure, PublicFigure, PrivateFigure]
    assert [one.may_leave for one in (made, public, private)] == [True, True, False]
    with pytest.raises(TypeError, match="a released source with None"):
        Sourced(2.0, "released")
    with pytest.raises(TypeError, match="a public source with"):
        Sourced(2.0, "public", answer(2.0, "entry-9"))
    with pytest.raises(TypeError, match="is an Answer, not bytes"):
        ReleasedFigure(answer=IMAGE, caption="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("audience", ["public", "private"])
def test_no_report_takes_what_is_sensitive(tmp_path: Path, audience: Any) -> None:
    folder = tmp_path / "private"
    for value in (Sensitive(31.5), PublicValue, answer(1.0, "entry-9")):
        with pytest.raises(TypeError):
            write(folder, section(value), audience=audience)
    write(folder, section(0.5 if audience == "private" else PublicValue(0.5)), audience=audience)


@pytest.mark.parametrize("bare", [0.93, 3, "text", None, np.float64(1.0), [PublicValue(1.0)]])
def test_public_report_refuses_bare_values(tmp_path: Path, bare: Any) -> None:
    with pytest.raises(TypeError, match="'marginal' is a bare"):
        write(tmp_path, section(bare))
    assert not list(tmp_path.iterdir())


def test_public_report_refuses_private_figures(tmp_path: Path) -> None:
    write(tmp_path / "released", section(PublicValue(1.0), RELEASED_FIGURE))
    with pytest.raises(TypeError, match="'Real rows' is a PrivateFigure"):
        write(
            tmp_path / "refused",
            section(PublicValue(1.0), PrivateFigure(image=IMAGE, caption="Real rows")),
        )
    assert not (tmp_path / "refused").exists()


def test_numbers_that_are_not_finite_become_null(tmp_path: Path) -> None:
    html, numbers = write(tmp_path, section(PublicValue(math.nan)))
    assert numbers["sections"][0]["metrics"][0]["value"] is None
    assert "nan" not in html


def test_private_report_is_marked_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "private"
    html, numbers = write(
        folder, section(0.5, PrivateFigure(image=IMAGE, caption="x")), audience="private"
    )
    assert html.count("NOT FOR RELEASE") == 2  # title and banner
    assert numbers["not_for_release"] is True
    assert numbers["sections"][0]["metrics"][0] == {
        "name": "marginal",
        "value": 0.5,
        "explanation": "1 is the best",
        "kind": "private",
    }
    for path in folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_private_report_elsewhere_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsafeError, match=r"private/report\.html"):
        write(tmp_path, section(0.5), audience="private")
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigError, match="audience"):
        write(tmp_path, audience="everyone")


@pytest.mark.parametrize("status", ["invalid", "non_private"])
def test_reports_without_a_guarantee_say_so(tmp_path: Path, status: str) -> None:
    certificate = {"status": status, "method": "m", "epsilon": None, "delta": None, "stages": []}
    html, numbers = write(tmp_path, certificate=certificate)
    assert 'class="banner"' in html
    assert "factor e^epsilon" not in html
    assert numbers["certificate"]["epsilon"] is None


def test_rows_declared_public_have_no_guarantee_to_show(tmp_path: Path) -> None:
    boxes = '<div class="number">'
    public = {"status": DECLARED_PUBLIC, "method": "none", "stages": []}
    html, _ = write(tmp_path, certificate=public)
    assert "declared its rows public" in html
    assert boxes not in html
    assert "Method none" not in html
    assert boxes in write(tmp_path)[0]


def test_text_is_escaped(tmp_path: Path) -> None:
    html, _ = write(tmp_path, section(PublicValue("<script>x</script>")), title="<b>bold</b>")
    assert "<script>" not in html
    assert "<b>bold</b>" not in html


def test_explanation_is_the_arithmetic_of_epsilon() -> None:
    text = " ".join(explain(CERTIFICATE))
    assert "about 7.389" in text  # e^2
    assert "88.080 %" in text  # e^2 / (1 + e^2) = .880797, rounded up
    assert "any one trajectory been left out" in text
    assert "1e-06" in text


@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 10.0, 30.0, 2000.0])
def test_explanation_never_claims_less_than_the_worst_case(epsilon: float) -> None:
    text = " ".join(explain({**CERTIFICATE, "epsilon": epsilon}))
    stated = float(re.findall(r"most ([\d.]+) % sure", text)[0])
    worst = 100 / (1 + math.exp(-epsilon))
    assert worst <= stated <= worst + 0.001 + 1e-9


@pytest.mark.parametrize(
    ("relation", "words"),
    [("replace_one", "exchanged for any other"), ("policy_level", "policies are protected")],
)
def test_explanation_follows_the_relation(relation: str, words: str) -> None:
    stage = {**CERTIFICATE["stages"][0], "relation": relation}
    text = " ".join(explain({**CERTIFICATE, "stages": [stage]}))
    assert words in text
    assert "any one trajectory been left out," not in text


def test_a_private_report_says_in_red_what_rows_are_not_useful_for(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    bad = Section(
        title="Worth",
        metrics=[
            Metric(name="ward and dose", value=0.5, reference=0.0625),
            Metric(name="b", value=1),
        ],
        not_useful=["how ward and dose go together: .6 in real rows, .1 in synthetic ones"],
    )
    html, numbers = write(tmp_path / "private", bad, audience="private")
    assert '<b class="valid">valid</b>' in html
    assert '<b class="broken">not useful</b><span>for what is named below</span>' in html
    assert "<li>not useful for how ward and dose go together: .6 in real rows" in html
    assert "<th>To compare with</th>" in html
    assert '<td class="value">0.0625</td>' in html
    assert numbers["not_useful_for"] == list(bad.not_useful)
    assert [metric.get("reference") for metric in numbers["sections"][0]["metrics"]] == [
        0.0625,
        None,
    ]
    html, numbers = write(tmp_path / "private", section(0.5), audience="private")
    assert "not useful" not in html
    assert "To compare with" not in html
    assert "not_useful_for" not in numbers


def test_a_page_folds_what_is_beyond_the_first_reasons_and_loses_none(tmp_path: Path) -> None:
    (tmp_path / "private").mkdir()
    reasons = [f"what fails in {number:02}" for number in range(20)]
    bad = (
        Section(title="Worth", not_useful=reasons[:18]),
        Section(title="More", not_useful=reasons[18:]),
    )
    page, numbers = write(tmp_path / "private", *bad, audience="private")
    shown, folded = page.split("<details>")
    assert [one in shown for one in reasons] == [True] * 16 + [False] * 4
    assert "<summary>and 4 more" in folded
    assert all(
        f"<li>not useful for {one}</li>" in folded.split("</details>")[0] for one in reasons[16:]
    )
    assert "<script" not in page
    assert numbers["not_useful_for"] == reasons
    html, _ = write(
        tmp_path / "private", Section(title="Worth", not_useful=reasons[:16]), audience="private"
    )
    assert "<details>" not in html


def test_a_public_report_takes_nothing_of_that(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="computed from real rows"):
        write(tmp_path, Section(title="Worth", not_useful=["anything"]))
    with pytest.raises(TypeError, match="computed from real rows"):
        write(tmp_path, Section(title="Worth", notes=["anything"]))
    beside = Metric(name="distance", value=PublicValue(1), reference=0.5)
    with pytest.raises(TypeError, match="'distance' is a bare float"):
        write(tmp_path, Section(title="Worth", metrics=[beside]))
    other = Metric(name="distance", value=PublicValue(1), reference=released(0.5, "entry-7"))
    with pytest.raises(UnsafeError, match="entry-7"):
        write(tmp_path, Section(title="Worth", metrics=[other]))


def test_stages_are_told_in_words(tmp_path: Path) -> None:
    html, _ = write(tmp_path, section(PublicValue(1)))
    (sentence,) = explain_stages(CERTIFICATE)
    assert sentence == (
        "fine-tune read clinic/stays-v0 (1234 units, a number declared public) and released 5,000"
        " noisy sums, in each of which a trajectory took part with probability 0.001, limited to a"
        " fixed length, under Gaussian noise 0.75 times that length."
    )
    assert f"<li>{sentence}</li>" in html


EVENT_WORDS: dict[str, tuple[dict[str, Any], str]] = {
    "poisson_gaussian": (
        {"sampling_probability": 0.5, "noise_multiplier": 2.0, "count": 3},
        "3 noisy sums, in each of which a",
    ),
    "gaussian": ({"noise_multiplier": 2.0}, "1 noisy answer under Gaussian noise 2 times what one"),
    "laplace": ({"noise_multiplier": 2.0, "count": 2}, "2 noisy answers under Laplace noise 2"),
    "discrete_laplace": ({"parameter": 0.25, "sensitivity": 2}, "under Laplace noise 2 times what"),
    "discrete_gaussian": (
        {"noise_multiplier": 3.0, "sensitivity": 4.0},
        "under Gaussian noise 3 times what one value of patient can change",
    ),
    "bounded_range": ({"epsilon": 0.5, "count": 4}, "4 choices between public candidates"),
    "pure_dp": ({"epsilon": 0.5, "count": 2}, "2 noisy answers of epsilon 0.5 at most each"),
    "approximate_dp": ({"epsilon": 0.0, "delta": 1e-7}, "of epsilon 0 and delta 1e-07 each"),
    "parallel": (
        {"branches": (({"kind": "gaussian", "noise_multiplier": 2.0},),)},
        "from parts that share no value of patient: 1 noisy answer under Gaussian",
    ),
    "repeat_and_select": (
        {
            "distribution": "poisson",
            "mean": 4.0,
            "events": ({"kind": "gaussian", "noise_multiplier": 2.0},),
        },
        "the best of a random number of trials",
    ),
}


def test_every_kind_of_event_has_words() -> None:
    known = {kind.model_fields["kind"].default for kind in get_args(get_args(Event)[0])}
    assert known == set(EVENT_WORDS)
    for kind, (values, words) in EVENT_WORDS.items():
        (event,) = EVENTS.validate_python([{"kind": kind, **values}])
        stage = {"name": "one", "dataset": "d", "units": 5, "unit": "patient"}
        (sentence,) = explain_stages({"stages": [{**stage, "events": [event.model_dump()]}]})
        assert words in sentence, kind
        assert "of kind" not in sentence


def test_the_certificate_is_said_to_be_of_one_unit_and_of_privacy_alone() -> None:
    said = " ".join(explain(CERTIFICATE))
    assert "holds for k of them at k times epsilon" in said
    assert "nothing about what the outputs are good for" in said
