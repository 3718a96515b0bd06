"""Experts of one's own: their networks and what they did, made ready for `method: expert`."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray
from torch import Tensor, nn

from distributed_privrl.agents.expert_policies import ExpertPolicies
from distributed_privrl.agents.experts import (
    EXPERTS_KEY,
    FOLDER,
    ExpertFacts,
    experts_folder,
    write_experts,
    write_log_probabilities,
)
from distributed_privrl.core.errors import ConfigError
from distributed_privrl.core.files import remove_folder, storage_errors, unfinished_folder
from distributed_privrl.data.store import DatasetStore
from distributed_privrl.data.trajectories import hash_unit

_MISSED = 0.05
"""How much rarer than it should be the preferred action may be in the rows, by chance."""


def stack_policies(
    networks: Mapping[str, nn.Sequential],
    *,
    minimum_probability: float,
    offset: Sequence[float],
    scale: Sequence[float],
) -> ExpertPolicies:
    """Return small networks of one form as policies that a filter can host.

    An expert takes the action that its network scores highest, but each other one with
    ``minimum_probability``: so it must have acted when it was recorded.

    Args:
        networks: by the name in the dataset's unit column, as text; each is Linear, Tanh or ReLU,
            Linear, ..., Linear, (M, O) to scores (M, A), float32.
        minimum_probability: p_min.
        offset: O numbers taken from observations, public facts.
        scale: by which they are then divided.

    Raises:
        ConfigError: there are none, or they are of another form or of several.
    """
    layers = [_layers(name, network) for name, network in networks.items()]
    forms = {(kind, *(tuple(one.weight.shape) for one in linear)) for linear, kind in layers}
    if len(forms) != 1:
        raise ConfigError(f"networks must be of one form, got {len(forms)}")
    depth = range(len(layers[0][0]))
    return ExpertPolicies(
        weights=tuple(
            _stacked([linear[index].weight.T for linear, _ in layers]) for index in depth
        ),
        biases=tuple(_stacked([linear[index].bias for linear, _ in layers]) for index in depth),
        activation="tanh" if layers[0][1] is nn.Tanh else "relu",
        minimum_probability=minimum_probability,
        unit_ids=np.array([hash_unit(name) for name in networks], dtype=np.uint64),
        offset=torch.tensor(offset, dtype=torch.float32),
        scale=torch.tensor(scale, dtype=torch.float32),
    )


def attach_experts(
    store: DatasetStore,
    dataset: str,
    policies: ExpertPolicies,
    *,
    trajectories: int,
    max_length: int,
) -> None:
    """Put the policies that collected a dataset beside it, with their actions' probabilities.

    Args:
        store: where the dataset is.
        dataset: its id; with a unit column, Discrete actions and whole trajectories.
        policies: one for each unit.
        trajectories: of each expert (n); who has fewer than a filter's pool is never drawn.
        max_length: most steps of a trajectory (L).

    Raises:
        ConfigError: no such dataset, it has not the form above, a unit has no policy, or the rows
            are not what these policies do.
        StorageError: the disk is full or cannot be written.

    Privacy:
        For the data's owner: reads rows and writes beside them, in the store; errors tell of rows.
        p_min, L, n and the number of policies become the metadata's, and must be public facts.
        Releases nothing.
    """
    _check_dataset(store, dataset, policies)
    values = _log_probabilities(store, dataset, policies)
    folder = experts_folder(store, dataset)
    with storage_errors(f"write {folder}"), unfinished_folder(store.root) as unfinished:
        write_experts(unfinished / FOLDER, policies)
        write_log_probabilities(unfinished / FOLDER, values)
        remove_folder(folder, beside=store.root)  # of an earlier call, perhaps of more experts
        (unfinished / FOLDER).rename(folder)
    store.changed(dataset)
    facts = ExpertFacts(
        count=len(policies),
        trajectories=trajectories,
        minimum_probability=policies.minimum_probability,
        max_length=max_length,
        shared_policy=policies.conditions is not None,
        log_probabilities=True,
    )
    store.update_metadata(dataset, {EXPERTS_KEY: facts.as_metadata()})


def _layers(name: str, network: nn.Sequential) -> tuple[list[nn.Linear], type[nn.Module]]:
    """Return the linear layers of a network and the class of what lies between them."""
    parts = list(network)
    linear = [one for one in parts[::2] if isinstance(one, nn.Linear) and one.bias is not None]
    kinds = {type(one) for one in parts[1::2]}
    whole = len(parts) % 2 == 1 and len(linear) == len(parts[::2])
    if not whole or len(kinds) > 1 or not kinds <= {nn.Tanh, nn.ReLU}:
        raise ConfigError(
            f"network {name!r} must be Linear, Tanh or ReLU, Linear, ..., Linear: got {network}"
        )
    return linear, kinds.pop() if kinds else nn.Tanh


def _stacked(tensors: Sequence[Tensor]) -> Tensor:
    return torch.stack([one.detach().float() for one in tensors]).contiguous()


def _check_dataset(store: DatasetStore, dataset: str, policies: ExpertPolicies) -> None:
    info = store.info(dataset)
    if info.kind == "transitions" or info.unit_column is None:
        raise ConfigError(
            f"{dataset} needs whole trajectories and a column that names the expert of each:"
            " import it with trajectory and unit in its schema"
        )
    if info.action_space != Discrete(policies.actions):
        raise ConfigError(
            f"{dataset} has actions {info.action_space}, the policies choose among"
            f" {policies.actions}, from 0 on"
        )
    space = info.observation_space
    if not isinstance(space, Box) or space.shape != (policies.observation_width,):
        raise ConfigError(
            f"{dataset} has observations {space}, the policies take {policies.observation_width}"
            " numbers"
        )


def _log_probabilities(
    store: DatasetStore, dataset: str, policies: ExpertPolicies
) -> NDArray[np.float32]:
    """Return the log-probability of each recorded action ``(N,)``, in the dataset's order."""
    unit = str(store.info(dataset).unit_column)
    positions = {one: index for index, one in enumerate(policies.unit_ids.tolist())}
    parts = [np.zeros(0, np.float32)]
    for chunk in store.iter_transitions(dataset, unit=unit):
        values = np.empty(len(chunk), np.float32)
        for one in np.unique(chunk.unit_ids).tolist():
            if one not in positions:
                raise ConfigError(
                    f"{dataset} has a unit without a policy: name each network by its value in"
                    f" column {unit!r}, as text"
                )
            rows = chunk.unit_ids == one
            seen = torch.from_numpy(chunk.observations[rows])
            scores = policies.log_probabilities(positions[one], seen)
            taken = torch.from_numpy(chunk.actions[rows])[:, None]
            values[rows] = scores.gather(1, taken)[:, 0].numpy()
        parts.append(values)
    values = np.concatenate(parts)
    _check_fit(dataset, values, policies)
    return values


def _check_fit(dataset: str, values: NDArray[np.float32], policies: ExpertPolicies) -> None:
    """Check that preferred actions are about as frequent as policies say.

    Raises:
        ConfigError: they are not: other policies acted, or the same in another way.
    """
    asked = 1 - (policies.actions - 1) * policies.minimum_probability
    if not len(values) or asked <= policies.minimum_probability:
        return  # no action is preferred
    between = np.log((asked + policies.minimum_probability) / 2)
    preferred = float((values > between).mean())
    if preferred < asked - _MISSED:
        raise ConfigError(
            f"{dataset} has the policies' preferred action in {preferred:.1%} of its rows, not in"
            f" {asked:.1%}: other policies acted, or not with these probabilities. Check names,"
            " offset and scale; without the policies that acted, set filter.share=0"
        )
