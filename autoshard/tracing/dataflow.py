"""Questions about the flow of data through one block of an exported graph.

A block's nodes fall into *found* fused ops (:class:`Found`) and everything in between: casts, views, rope, masks.
``sources`` looks backward from a node through that in-between to the ops it comes from.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, fx

from autoshard.tracing.axes import base_name

LAYOUT = frozenset(
    [
        "transpose",
        "permute",
        "view",
        "reshape",
        "t",
        "numpy_T",
        "unsqueeze",
        "squeeze",
        "expand",
        "contiguous",
        "to",
        "alias",
        "detach",
        "clone",
        "_unsafe_view",
        "flatten",
        "type_as",
        "expand_as",
        "view_as",
        "reshape_as",
    ]
)
"""Ops that move or cast elements and compute nothing."""
_LIKE = frozenset(["type_as", "expand_as", "view_as", "reshape_as"])
"""Those that take a dtype or a shape from their second input."""
VIEW = LAYOUT | {"slice", "select", "narrow"}
"""Ops whose result shares, or may share, memory with their input."""
IDENTITY = LAYOUT | {"dropout"}
"""What a residual may pass on its way and stay the residual."""
CREATION = frozenset(
    [
        "new_zeros",
        "new_ones",
        "new_full",
        "new_empty",
        "zeros_like",
        "ones_like",
        "full_like",
        "empty_like",
        "_assert_tensor_metadata",
    ]
)
"""Ops that take only a shape from their input: no data flows through them."""


@dataclass(eq=False, kw_only=True)
class Found:
    """A fused op in the making: what was recognised, the nodes that are it, and the parameters it owns.

    ``shape`` is what the node computes (``contraction``, ``norm``, ``attention``, ``embedding``, ``add``, ``opaque``);
    ``role`` is what it is to the model, filled once the surroundings are known. ``weight`` and ``bias`` are parameter
    placeholders; an op that has others lists them in ``parameters``. ``tensors`` are the inputs whose order matters
    (query, key, value). ``is_slice`` says that the weight is a slice of its parameter, ``experts`` that the op stands
    for that many experts written one by one. ``reason`` says why an opaque op is one.
    """

    shape: str
    node: fx.Node
    weight: fx.Node | None = None
    bias: fx.Node | None = None
    nodes: list[fx.Node] = field(default_factory=list)
    parameters: list[fx.Node] = field(default_factory=list)
    tensors: tuple[fx.Node, ...] = ()
    is_slice: bool = False
    experts: int = 0
    role: str = ""
    reason: str = ""
    fqn: str = ""

    def owned(self) -> list[fx.Node]:
        """All parameter placeholders."""
        return [p for p in (self.weight, self.bias, *self.parameters) if p is not None]


BLOCK_INPUT_SOURCE = Found(shape="input", node=fx.Graph().placeholder("input"), role="input")
"""Stands for the residual that enters the block."""


class Dataflow:
    """Backward questions inside one block.

    ``parameters`` gives the name behind a graph input that is a parameter. ``labels`` maps the nodes that belong to a
    found op to it. ``data`` holds every node that depends on token
    embeddings: outside the block these are the residual, while masks and rope tables are not. ``tokens`` is the size of
    the traced batch, ``length`` that of one sequence. ``is_per_token`` says whether a contraction is known to take
    every token by itself.
    """

    def __init__(
        self,
        nodes: Iterable[fx.Node],
        parameters: Mapping[fx.Node, str],
        data: set[fx.Node],
        *,
        tokens: int,
        length: int,
        is_per_token: Callable[[fx.Node], bool],
    ) -> None:
        self.nodes = list(nodes)
        self.is_per_token = is_per_token
        self.tokens = tokens
        self.length = length
        self.labels: dict[fx.Node, Found] = {}
        self._inside = set(self.nodes)
        self._parameters = parameters
        self._data = data
        self._written = _writes(self.nodes)
        self._position = {n: i for i, n in enumerate(self.nodes)}

    def position(self, node: fx.Node) -> int:
        """Where ``node`` stands in the block; the end, for nodes outside."""
        return self._position.get(node, len(self.nodes))

    def is_inside(self, node: fx.Node) -> bool:
        """Whether ``node`` is one of the block's."""
        return node in self._inside

    def is_data(self, node: fx.Node) -> bool:
        """Whether ``node`` depends on token embeddings."""
        return node in self._data

    def label(self, found: Found, *nodes: fx.Node) -> None:
        """Say that ``nodes`` are part of ``found``."""
        for node in nodes:
            self.labels[node] = found
            found.nodes.append(node)

    def forget(self, found: Found) -> None:
        """Take the nodes of an op back: they are in-between again."""
        for node in found.nodes:
            del self.labels[node]

    def sources(self, *starts: fx.Node) -> tuple[Found, ...]:
        """The found ops (or the block input) that ``starts`` come from, in order of arguments."""
        found: dict[Found, None] = {}
        for node in self._backward(starts):
            if node in self.labels:
                found[self.labels[node]] = None
            elif node not in self._inside and node in self._data:
                found[BLOCK_INPUT_SOURCE] = None
        return tuple(found)

    def between(self, *starts: fx.Node) -> list[fx.Node]:
        """The nodes passed on the way from ``starts`` back to their sources, ``starts`` included."""
        return [n for n in self._backward(starts) if n not in self.labels and n in self._inside]

    def operands(self, found: Found) -> tuple[fx.Node, ...]:
        """Inputs of all nodes of an op, parameters and its own nodes apart."""
        own = set(found.nodes)
        inputs = (n for node in found.nodes for n in node.all_input_nodes)
        return tuple(n for n in inputs if n not in own and self.parameter(n) is None)

    def parameter(self, node: fx.Node, through: frozenset[str] = LAYOUT) -> fx.Node | None:
        """The parameter placeholder that ``node`` is a view of, if it is one."""
        while node not in self._parameters:
            name = base_name(node)
            derived = name in through or (name in ("add", "add_") and len(node.all_input_nodes) == 1)
            if not derived or not node.args or not isinstance(node.args[0], fx.Node):
                return None
            node = node.args[0]
        return node

    def parameters(self) -> list[fx.Node]:
        """All parameter placeholders of the graph, used or not."""
        return list(self._parameters)

    def name_of(self, parameter: fx.Node) -> str:
        """The name behind a placeholder."""
        return self._parameters[parameter]

    def same_module(self, one: fx.Node, other: fx.Node) -> bool:
        """Whether one module owns both parameters."""
        return self._parameters[one].rpartition(".")[0] == self._parameters[other].rpartition(".")[0]

    def same_elements(self, one: fx.Node, other: fx.Node) -> bool:
        """Whether two tensors are one, moved, cast or repeated at most: nothing tells their elements apart."""
        return _unmoved(one) is _unmoved(other)

    def is_residual(self, node: fx.Node) -> bool:
        """Whether ``node`` is the block's input, an embedding or a residual sum, as it stands."""
        while True:
            found = self.labels.get(node)
            if found is not None:
                return found.shape in ("add", "embedding")
            if node not in self._inside:
                return node in self._data
            if base_name(node) not in IDENTITY or not isinstance(node.args[0], fx.Node):
                return False
            node = node.args[0]

    def _backward(self, starts: Iterable[fx.Node]) -> Iterator[fx.Node]:
        """Depth-first in order of arguments; stops at labelled and outside nodes, which are given too."""
        seen: set[fx.Node] = set()
        stack = list(reversed(list(starts)))
        while stack:
            node = stack.pop()
            written = self._written.get(node, [])
            if node in seen or (base_name(node) in CREATION and not written):
                continue
            seen.add(node)
            yield node
            if node not in self.labels and node in self._inside:
                stack.extend(reversed([] if base_name(node) in CREATION else data_inputs(node)))
                stack.extend(reversed(written))


def _unmoved(node: fx.Node) -> fx.Node:
    """The tensor that ``node`` only moves or casts."""
    while base_name(node) in LAYOUT and node.args and isinstance(node.args[0], fx.Node):
        node = node.args[0]
    return node


def data_inputs(node: fx.Node) -> list[fx.Node]:
    """Inputs whose elements enter the result, not only their shape or dtype."""
    return node.all_input_nodes[:1] if base_name(node) in _LIKE else node.all_input_nodes


def _writes(nodes: list[fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """Values copied into (parts of) freshly created tensors, by the tensor."""
    found: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        target = _written_tensor(node)
        if target is not None:
            found.setdefault(target, []).extend(node.all_input_nodes[1:])
    return found


def _written_tensor(node: fx.Node) -> fx.Node | None:
    """The freshly created tensor that ``node`` writes to, or to a part of."""
    if base_name(node) not in ("copy_", "index_put_", "index_copy_", "scatter_"):
        return None
    target = node.all_input_nodes[0]
    while base_name(target) in VIEW and target.all_input_nodes:
        target = target.all_input_nodes[0]
    return target if base_name(target) in CREATION else None


def dependents(roots: Iterable[fx.Node]) -> set[fx.Node]:
    """Every node that data of ``roots`` reaches, ``roots`` included."""
    reached: set[fx.Node] = set()
    written: set[fx.Node] = set()
    stack = list(roots)
    while stack:
        node = stack.pop()
        if node in reached or (base_name(node) in CREATION and node not in written):
            continue
        reached.add(node)
        stack.extend(node.users)
        target = _written_tensor(node)
        if target is not None:
            written.add(target)
            stack.append(target)
    return reached


def is_tensor(node: object) -> bool:
    """Whether ``node`` is a graph node that gives one tensor."""
    return isinstance(node, fx.Node) and isinstance(node.meta.get("val"), Tensor)
