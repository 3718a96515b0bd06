import json

import pytest
from pydantic import ValidationError

from distributed_privrl.privacy.events import (
    EVENTS,
    ApproximateDpEvent,
    BoundedRangeEvent,
    DiscreteGaussianEvent,
    DiscreteLaplaceEvent,
    GaussianEvent,
    LaplaceEvent,
    ParallelEvent,
    PoissonGaussianEvent,
    PureDpEvent,
    RepeatAndSelectEvent,
)

ALL = (
    PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=1.1, count=7),
    GaussianEvent(noise_multiplier=2.0),
    LaplaceEvent(noise_multiplier=3.0, count=2),
    DiscreteLaplaceEvent(parameter=0.1, sensitivity=2),
    DiscreteGaussianEvent(noise_multiplier=2.0, sensitivity=2.0**16, count=3),
    BoundedRangeEvent(epsilon=0.3, count=32),
    PureDpEvent(epsilon=0.5, derivation={"variant": "tight", "m": 3000, "p_min": 0.02}),
    ApproximateDpEvent(epsilon=0.0, delta=1e-9),
    ParallelEvent(branches=((GaussianEvent(noise_multiplier=1.0),), ())),
    RepeatAndSelectEvent(
        distribution="negative_binomial",
        shape=1.0,
        mean=20.0,
        events=(GaussianEvent(noise_multiplier=1.0),),
    ),
)


def test_every_kind_survives_json():
    text = json.dumps(EVENTS.dump_python(ALL, mode="json"))
    assert EVENTS.validate_python(json.loads(text)) == ALL


def test_the_contract_of_a_private_round():
    assert ALL[0].model_dump() == {
        "kind": "poisson_gaussian",
        "sampling_probability": 0.01,
        "noise_multiplier": 1.1,
        "count": 7,
    }


def test_events_are_frozen_and_refuse_unknown_keys():
    with pytest.raises(ValidationError):
        ALL[1].noise_multiplier = 9.0
    with pytest.raises(ValidationError):
        GaussianEvent.model_validate({"noise_multiplier": 1.0, "sigma": 2.0})
    with pytest.raises(ValidationError):
        EVENTS.validate_python([{"kind": "wishful"}])


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (GaussianEvent, {"noise_multiplier": 0.0}),
        (GaussianEvent, {"noise_multiplier": float("inf")}),
        (GaussianEvent, {"noise_multiplier": float("nan")}),
        (GaussianEvent, {"noise_multiplier": 1.0, "count": -1}),
        (PoissonGaussianEvent, {"sampling_probability": 0, "noise_multiplier": 1, "count": 1}),
        (PoissonGaussianEvent, {"sampling_probability": 1.1, "noise_multiplier": 1, "count": 1}),
        (DiscreteLaplaceEvent, {"parameter": 1.0, "sensitivity": 0}),
        (DiscreteLaplaceEvent, {"parameter": 1e-12, "sensitivity": 10}),
        (DiscreteLaplaceEvent, {"parameter": 1e3, "sensitivity": 10**9}),
        (DiscreteGaussianEvent, {"noise_multiplier": 1.0}),
        (DiscreteGaussianEvent, {"noise_multiplier": 1.0, "sensitivity": 0.0}),
        (DiscreteGaussianEvent, {"noise_multiplier": 0.0, "sensitivity": 1.0}),
        (BoundedRangeEvent, {"epsilon": 0.0}),
        (BoundedRangeEvent, {"epsilon": float("inf")}),
        (BoundedRangeEvent, {"epsilon": 1.0, "count": -1}),
        (PureDpEvent, {"epsilon": -0.1}),
        (ApproximateDpEvent, {"epsilon": 0.0, "delta": 1.0}),
        (ParallelEvent, {"branches": ()}),
        (RepeatAndSelectEvent, {"distribution": "poisson", "mean": 2, "events": ()}),
    ],
)
def test_impossible_parameters_are_refused(kind, values):
    with pytest.raises(ValidationError):
        kind(**values)


@pytest.mark.parametrize(("distribution", "shape"), [("negative_binomial", None), ("poisson", 1.0)])
def test_a_shape_goes_with_the_negative_binomial_alone(distribution, shape):
    with pytest.raises(ValidationError, match="shape"):
        RepeatAndSelectEvent(distribution=distribution, shape=shape, mean=2.0, events=(ALL[1],))
