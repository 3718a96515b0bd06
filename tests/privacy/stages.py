"""A certificate to alter: two stages on one dataset, one of them Poisson-sampled rounds."""

from distributed_privrl.privacy.certificate import Stage, build_certificate
from distributed_privrl.privacy.events import DiscreteLaplaceEvent, PoissonGaussianEvent

SECURE = ("float64_lattice", True, ("float64_lattice_noise",))
INSECURE = ("insecure_seeded", False, ())
ROUNDS = PoissonGaussianEvent(sampling_probability=0.01, noise_multiplier=3.0, count=500)
COUNT = DiscreteLaplaceEvent(parameter=0.05, sensitivity=1)


def stage(**changed):
    values = {
        "name": "fine-tune",
        "dataset": "clinic/stays-v0",
        "unit": "trajectory",
        "relation": "replace_with_null",
        "units": 20_000,
        "units_source": "dp",
        "accountant": "pld",
        "delta": 1e-6,
        "clip_norm": 1.0,
        "events": (ROUNDS,),
    }
    return Stage(**{**values, **changed})


def count_stage(**changed):
    values = {
        "name": "count",
        "accountant": "pure",
        "delta": 0.0,
        "clip_norm": None,
        "events": (COUNT,),
    }
    return stage(**{**values, **changed})


def certificate(*stages, **changed):
    values = {
        "method": "privorl_j",
        "stages": stages or (count_stage(), stage()),
        "spare_rounds": 100,
        "noise_source": SECURE,
        "ledger_entries": ("run-1", "run-1/count"),
        "outputs": (),
        "versions": {"python": "3.11"},
    }
    return build_certificate(**{**values, **changed})
