"""Policies kept in files and handed on to other problems: arrays by component, as safetensors; nothing is executed.

A policy is stored component by component, so that one trained on a model, a cluster or a workload can start a search of
another: what belongs to a component goes to the one of the same name, else to the first of the same operator; options
go by position (degrees ascend, so that the first ones are the same sizes), and what has no counterpart stays as it was.
Without a history it draws as it last did with its own.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from autoshard.errors import InvalidInputError
from autoshard.search.elites import Elites
from autoshard.search.policy import Policy

FORMAT = "autoshard.policy/1"


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """Arrays of a policy: of its components in order ([component][what]), and those that all share."""

    components: tuple[str, ...]
    of_component: tuple[Mapping[str, NDArray[np.float32]], ...]
    shared: Mapping[str, NDArray[np.float32]]

    @staticmethod
    def of(policy: Policy, components: Sequence[str], history: Elites) -> "SavedPolicy":
        """A copy of a policy's arrays; its context without a history becomes that of ``history``."""
        each = [{k: v.copy() for k, v in views.items()} for views in _views(policy)]
        shared = {name: tensor.numpy().copy() for name, tensor in _shared(policy)}
        shared["no_history"] = policy.context(history).detach().numpy().copy()
        return SavedPolicy(tuple(components), tuple(each), shared)

    def hand_on(self, policy: Policy, components: Sequence[str]) -> None:
        """Copy into another policy what its components share with these."""
        for name, tensor in _shared(policy):
            known = self.shared.get(name)
            if known is not None and known.shape == tuple(tensor.shape):
                tensor.copy_(torch.from_numpy(known))
        for component, views in zip(components, _views(policy), strict=True):
            at = self._like(component)
            if at is not None:
                for what, view in views.items():
                    _copy_common(self.of_component[at][what], view)

    def _like(self, component: str) -> int | None:
        if component in self.components:
            return self.components.index(component)
        ends = [name.rpartition("/")[2] for name in self.components]
        end = component.rpartition("/")[2]
        return ends.index(end) if end in ends else None

    def save(self, path: Path) -> None:
        """Write a safetensors file."""
        arrays = {f"shared/{name}": array for name, array in self.shared.items()}
        for number, views in enumerate(self.of_component):
            arrays |= {f"component/{number}/{what}": np.ascontiguousarray(array) for what, array in views.items()}
        save_file(arrays, path, metadata={"format": FORMAT, "components": json.dumps(self.components)})

    @staticmethod
    def load(path: Path) -> "SavedPolicy":
        """Read a file that `save` wrote.

        Raises:
            InvalidInputError: when there is no such file, or it holds something else.
        """
        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
        except (OSError, SafetensorError) as error:
            raise InvalidInputError(f"{path} is no saved policy: {error}") from None
        if metadata.get("format") != FORMAT:
            raise InvalidInputError(f"{path} is no saved policy: its format is {metadata.get('format')}, not {FORMAT}")
        components = tuple(str(name) for name in json.loads(metadata["components"]))
        each: list[dict[str, NDArray[np.float32]]] = [{} for _ in components]
        shared = {}
        for name, array in arrays.items():
            kind, _, rest = name.partition("/")
            if kind == "shared":
                shared[rest] = array
            else:
                number, _, what = rest.partition("/")
                each[int(number)][what] = array
        return SavedPolicy(components, tuple(each), shared)


def _shared(policy: Policy) -> list[tuple[str, torch.Tensor]]:
    names = ("encoder.", "score_embedding.", "no_history")
    return [(name, p.detach()) for name, p in policy.named_parameters() if name.startswith(names)]


def _views(policy: Policy) -> list[dict[str, NDArray[np.float32]]]:
    """Writable views of what belongs to every component."""
    num, width = len(policy.num_options), policy.no_history.shape[0]
    heads = [each for head in policy.option_heads for each in head.detach().numpy()]
    biases = [each for bias in policy.option_biases for each in bias.detach().numpy()]
    context = policy.context_head.weight.detach().numpy().reshape(num, width, width)
    context_bias = policy.context_head.bias.detach().numpy().reshape(num, width)
    found = []
    for c, (start, size) in enumerate(zip(policy.offsets.tolist(), policy.num_options.tolist(), strict=True)):
        rows = slice(start, start + size)
        found.append(
            {
                "history_embedding": policy.history_embedding.weight.detach().numpy()[rows],
                "prefix_embedding": policy.prefix_embedding.weight.detach().numpy()[rows],
                "prefix_head": policy.prefix_head.detach().numpy()[c],
                "context_head": context[c],
                "context_bias": context_bias[c],
                "option_head": heads[c][:, :size],
                "option_bias": biases[c][:size],
            }
        )
    return found


def _copy_common(source: NDArray[np.float32], target: NDArray[np.float32]) -> None:
    common = tuple(slice(0, min(a, b)) for a, b in zip(source.shape, target.shape, strict=True))
    target[common] = source[common]
