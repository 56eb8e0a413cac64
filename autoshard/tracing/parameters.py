"""The ledger of a model's parameters: every one is owned by exactly one op, ties are aliases."""

from collections.abc import Collection

from torch import fx, nn

from autoshard.ir import Param


class ParameterLedger:
    """Names of parameters, and who owns which.

    A tensor with several names (tied weights) is owned under its first name; ops that use it otherwise hold aliases.
    ``placeholders`` gives the canonical name of a graph input that is a parameter.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, inputs: dict[str, str]) -> None:
        named = list(model.named_parameters(remove_duplicate=False))
        first: dict[int, str] = {}
        self._aliases: dict[str, list[str]] = {}
        for name, parameter in named:
            canonical = first.setdefault(id(parameter), name)
            self._aliases.setdefault(canonical, []).append(name)
        by_name = dict(named)
        self._parameters = {name: by_name[name] for name in self._aliases}
        canonical_of = {alias: name for name, aliases in self._aliases.items() for alias in aliases}
        self.placeholders = {n: canonical_of[inputs[n.name]] for n in graph.nodes if n.name in inputs}
        self._by_name: dict[str, fx.Node] = {name: n for n, name in reversed(self.placeholders.items())}
        self._graph = graph
        self._claimed: set[str] = set()

    @property
    def names(self) -> tuple[str, ...]:
        """Canonical names in model order."""
        return tuple(self._aliases)

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters, ties counted once."""
        return sum(p.numel() for p in self._parameters.values())

    def shared_by(self, layers: Collection[str]) -> list[str]:
        """Names of one parameter in several of ``layers``; none if no two share one."""
        for aliases in self._aliases.values():
            inside = {layer: a for a in aliases for layer in layers if a.startswith(f"{layer}.")}
            if len(inside) > 1:
                return list(inside.values())
        return []

    def placeholder(self, name: str) -> fx.Node:
        """The graph input of a canonical name; a detached one if the graph does not use the parameter."""
        if name not in self._by_name:
            detached: fx.Node = fx.Graph().placeholder(name)
            self._by_name[name] = detached
            self.placeholders[detached] = name
        return self._by_name[name]

    def is_claimed(self, name: str) -> bool:
        """Whether an op owns the parameter already."""
        return name in self._claimed

    def claim(self, placeholder: fx.Node, module: str, role: str) -> Param:
        """The parameter behind ``placeholder`` as an op in ``module`` holds it: owned if it is the first to ask."""
        canonical = self.placeholders[placeholder]
        inside = [a for a in self._aliases[canonical] if a.rpartition(".")[0] == module]
        name = inside[0] if inside else canonical
        held = self._parameters[canonical]
        shape, dtype = tuple(held.shape), str(held.dtype).removeprefix("torch.")
        alias = canonical in self._claimed
        self._claimed.add(canonical)
        return Param(fqn=name, shape=shape, dtype=dtype, role=role, shared_with=canonical if alias else None)
