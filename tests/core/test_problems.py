"""What is wrong with a configuration, in one clear clause a key."""

from pathlib import Path
from typing import Annotated, Any, Literal, Self

import pytest
from pydantic import Field, model_validator

from distributed_privrl.core.config import DataConfig, PrivacyConfig, StrictModel, validate
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.methods.privorl.config import PrivorlNConfig

DATA = {"sensitive": "a-v0", "unit": "trajectory"}
NOISY = {"epsilon": 1.0, "search": "wide.yaml"}
KINDS = "must be a path, a URI, 'environment', 'public' or {epsilon: ..., search: ...}"


def said(model: type[StrictModel], values: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as refused:
        validate(model, values, source="c.yaml")
    message = str(refused.value)
    assert "\n" not in message
    return message.removeprefix("c.yaml: ")


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        (3, f"bounds=3: {KINDS}"),
        ([1], f"bounds=[1]: {KINDS}"),
        (
            {**NOISY, "epsilon": -1},
            "bounds.epsilon=-1: Input should be greater than or equal to 0.000001",
        ),
        (
            {"epsilon": 1},
            "'bounds.search' is missing (public ranges to search in: a YAML file as for bounds, or"
            " the environment's)",
        ),
        (
            {**NOISY, "quantile": 1},
            "unknown key 'bounds.quantile' (known: epsilon, search, quantiles, parts)",
        ),
        ({**NOISY, "search": 5}, "bounds.search=5: must be a path, a URI or 'environment'"),
        (
            {**NOISY, "quantiles": [0.9, 0.1]},
            "bounds.quantiles=[0.9, 0.1]: must be two rising numbers in (0, 1), with four decimals"
            " at most",
        ),
    ],
)
def test_bounds_say_what_is_wrong_with_what_was_meant(bounds: Any, message: str) -> None:
    assert said(DataConfig, {**DATA, "bounds": bounds}) == message


@pytest.mark.parametrize(
    ("units", "message"),
    [
        ("many", "units='many': must be a whole number or {epsilon: ...}"),
        (0, "units=0: Input should be greater than 0"),
        (
            {"eps": 1},
            "'units.epsilon' is missing (epsilon spent on the count);"
            " unknown key 'units.eps' (known: epsilon)",
        ),
    ],
)
def test_units_too(units: Any, message: str) -> None:
    assert said(DataConfig, {**DATA, "units": units}) == message


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"micro_batch_rows": 64}, "'runtime.micro_batch_rows' now"),
        ({"pretraining": {"keep": "folder"}}, "'runtime.pretrained' now"),
    ],
)
def test_keys_that_moved_are_named_where_they_are(section: dict[str, Any], message: str) -> None:
    values = {
        "data": DATA,
        "privacy": {"epsilon": 1, "delta": 1e-6},
        "output": {"dataset": "b-v0", "size": 9},
        "training": section,
    }
    assert message in said(PrivorlNConfig, values)


class Circle(StrictModel):
    kind: Literal["circle"]
    radius: float | list[float]


class Square(StrictModel):
    kind: Literal["square"]
    side: Annotated[int, Field(gt=0)]


class Drawing(StrictModel):
    shape: Annotated[Circle | Square, Field(discriminator="kind")]
    paper: Path | None = None
    title: str | tuple[str, ...] = ""


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"shape": {"kind": "square", "side": 0}}, "shape.side=0: Input should be greater than 0"),
        ({"shape": {"kind": "circle"}}, "'shape.radius' is missing"),
        (
            {"shape": {"kind": "circle", "radius": "x"}},
            "shape.radius='x': must be a number or a list",
        ),
        (
            {"shape": {"kind": "square", "side": 1, "radius": 1}},
            "unknown key 'shape.radius' (known: kind, side)",
        ),
        ({"title": 5}, "title=5: must be text or a list"),
        ({"colour": 5}, "unknown key 'colour' (known: shape, paper, title)"),
        ({"paper": 5}, "paper=5: must be a path"),
    ],
)
def test_sections_told_apart_by_a_value(changed: dict[str, Any], message: str) -> None:
    assert said(Drawing, {"shape": {"kind": "circle", "radius": 1}, **changed}) == message


class Whole(StrictModel):
    """Two numbers that must differ."""

    first: int
    second: int

    @model_validator(mode="after")
    def _differ(self) -> Self:
        if self.first == self.second:
            raise ValueError("take another")
        return self


class Outer(StrictModel):
    """A section with another in it."""

    whole: Whole


def test_what_is_wrong_with_a_whole_section_is_said_without_its_values() -> None:
    assert said(Whole, {"first": 1, "second": 1}) == "take another"
    assert said(Outer, {"whole": {"first": 1, "second": 1}}) == "whole: take another"


def test_a_missing_delta_says_how_to_choose_one() -> None:
    assert said(PrivacyConfig, {"epsilon": 1}) == (
        "'delta' is missing (upper bound on delta; a tenth of 1/units or less: 1e-5 for up to"
        " 10,000 units)"
    )
