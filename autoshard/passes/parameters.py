"""Which nodes of an exported graph are parameters, and which parameter each is."""

from collections.abc import Iterable

from torch import fx

from autoshard.errors import PlanMismatchError


class ParameterNames:
    """Parameters by the names that export gives their nodes.

    ``torch.export`` lifts a parameter to a placeholder called ``p_`` and its FQN with underscores; an unlifted graph
    reads it through ``get_attr`` with the FQN. Both may carry the attribute of a wrapper in front.
    """

    def __init__(self, fqns: Iterable[str]) -> None:
        self._by_key: dict[str, str] = {}
        for fqn in fqns:
            other = self._by_key.setdefault(_key(fqn), fqn)
            if other != fqn:
                raise PlanMismatchError(f"parameters {other} and {fqn} have the same name in an exported graph")

    def fqn(self, node: fx.Node) -> str | None:
        """The parameter a node is; None for one that is none of them."""
        target = str(node.target)
        if node.op == "placeholder" and target.startswith("p_"):
            key = target.removeprefix("p_")
        elif node.op == "get_attr":
            key = _key(target)
        else:
            return None
        while key not in self._by_key:
            _, underscore, key = key.partition("_")
            if not underscore:
                return None
        return self._by_key[key]


def _key(fqn: str) -> str:
    return fqn.replace(".", "_")
