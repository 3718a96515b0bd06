"""The agents that learn from a dataset, by name, with what a configuration changes of them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distributed_privrl.agents.algorithm import Algorithm
from distributed_privrl.agents.bc import BC
from distributed_privrl.agents.cql import CQL
from distributed_privrl.agents.discrete_bcq import DiscreteBCQ
from distributed_privrl.agents.discrete_cql import DiscreteCQL
from distributed_privrl.agents.edac import EDAC
from distributed_privrl.agents.iql import IQL
from distributed_privrl.agents.options import with_options
from distributed_privrl.agents.td3bc import TD3BC

_ALGORITHMS: tuple[Algorithm[Any, Any], ...] = (
    BC(),
    IQL(),
    TD3BC(),
    EDAC(),
    CQL(),
    DiscreteCQL(),
    DiscreteBCQ(),
)

ALGORITHMS: Mapping[str, Algorithm[Any, Any]] = {one.name: one for one in _ALGORITHMS}
"""The agents with their default hyper-parameters, by name."""


def configured(algorithm: Algorithm[Any, Any], options: Mapping[str, Any]) -> Algorithm[Any, Any]:
    """Return ``algorithm`` with some hyper-parameters changed.

    Raises:
        ConfigError: an option is unknown (the message lists the names), of another type or out of
            range.
    """
    config = with_options(algorithm.name, algorithm.config, options)
    return replace(algorithm, config=config)
