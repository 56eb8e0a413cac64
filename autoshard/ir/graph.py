"""The operator graph of a model: a prologue, repeated blocks of fused ops, an epilogue."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import wraps
from typing import TypeVar

from autoshard.ir.dims import Param
from autoshard.ir.ops import (
    Activation,
    Add,
    Attention,
    Combine,
    ExpertsLinear,
    FusedOp,
    Indexer,
    LatentAttention,
    Mixer,
    Norm,
    Opaque,
)
from autoshard.units import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A kind of block and where it stands in the model.

    ``instances`` are the module prefixes of its repeats in model order (``model.layers.0``, ...); a prologue or
    epilogue has the single instance ``""``. ``ops`` are in execution order and carry the names of the first instance.
    ``returns_more`` says that an instance returns more than the residual stream (the chosen keys of a sparse attention,
    which the next layers use too).
    """

    name: str
    ops: tuple[FusedOp, ...]
    instances: tuple[str, ...]
    returns_more: bool = False

    def __post_init__(self) -> None:
        names = [op.name for op in self.ops]
        assert len(set(names)) == len(names), f"op names of block {self.name} repeat: {names}"

    @property
    def repeat(self) -> int:
        """How many times the block stands in the model."""
        return len(self.instances)

    def fqn(self, name: str, instance: int) -> str:
        """``name`` (an FQN in the first instance) as it is called in another instance."""
        first, other = self.instances[0], self.instances[instance]
        if name == first or name.startswith(first + "."):
            return other + name[len(first) :]
        return name

    def op(self, name: str) -> FusedOp:
        """The op called ``name``. Raises KeyError if there is none."""
        for op in self.ops:
            if op.name == name:
                return op
        raise KeyError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpGraph:
    """A traced model.

    ``layers`` gives, in model order, the index into ``blocks`` of every layer. The sum of parameters over the graph
    equals the model's, exactly (aliases counted once).
    """

    model_name: str
    model_class: str
    dtype: str
    prologue: Block
    blocks: tuple[Block, ...]
    epilogue: Block
    layers: tuple[int, ...]

    def components(self) -> tuple[Block, ...]:
        """Prologue, every kind of block, epilogue."""
        return (self.prologue, *self.blocks, self.epilogue)

    def all_ops(self) -> Iterator[tuple[Block, FusedOp]]:
        """Every (block, op) once, not repeated."""
        for block in self.components():
            for op in block.ops:
                yield block, op

    def parameters(self) -> Iterator[tuple[Block, FusedOp, int, Param]]:
        """Every parameter of the full model as (block, op, instance, param with its instance's FQN)."""
        for block in self.components():
            for i in range(block.repeat):
                for op in block.ops:
                    for p in op.params:
                        shared = None if p.shared_with is None else block.fqn(p.shared_with, i)
                        yield block, op, i, replace(p, fqn=block.fqn(p.fqn, i), shared_with=shared)

    @property
    def num_parameters(self) -> int:
        """Elements of the whole model, aliases counted once."""
        return sum(b.repeat * op.num_parameters for b, op in self.all_ops())

    @property
    def num_active_parameters(self) -> int:
        """Elements a token uses: routed experts count top_k of their number; an embedding table counts in full."""
        total = 0
        for b, op in self.all_ops():
            n = op.num_parameters
            if isinstance(op, ExpertsLinear):
                rows = [p.shape[0] for p in op.params if len(p.shape) == 3]  # more than experts, if some do nothing
                n = n * op.top_k // max([op.experts.size, *rows])
            total += b.repeat * n
        return total

    def flops(self, tokens: float = 1.0, context: float = 0.0) -> float:
        """FLOPs of the whole model for ``tokens`` tokens, each seeing ``context`` keys."""
        return sum(b.repeat * op.flops(tokens, context) for b, op in self.all_ops())

    def traced_flops(self, tokens: float = 1.0, context: float = 0.0) -> float:
        """FLOPs of matrices, experts and mixers as the model's own code spends them on ``tokens`` tokens.

        Attention multiplies all keys, in its window or not, latent attention is expanded, recurrent mixers run in their
        chunked form. Element-wise work is not counted, as ``torch.utils.flop_counter`` does not.
        """
        total = 0.0
        for b, op in self.all_ops():
            if isinstance(op, Attention):
                keys = context * (1.0 + (0.0 if op.pooled is None else 1.0 / op.pooled))
                total += b.repeat * 2.0 * tokens * keys * op.heads.size * (op.qk_dim + op.v_dim)
            elif isinstance(op, LatentAttention):
                total += b.repeat * op.expanded_flops(tokens, context)
            elif isinstance(op, Mixer):
                total += b.repeat * op.traced_flops_per_token * tokens
            elif isinstance(op, Combine):
                total += b.repeat * op.contraction_flops_per_token * tokens
            elif not isinstance(op, Norm | Activation | Add):
                total += b.repeat * op.flops(tokens, context)
        return total

    def kv_bytes_per_token(self, kv_dtype: str = "bfloat16") -> float:
        """KV-cache bytes of one token over all layers (unsharded, before any window)."""
        return self.kv_growth(0, kv_dtype)

    def kv_growth(self, length: int, kv_dtype: str = "bfloat16") -> float:
        """Bytes by which the KV cache of a sequence of ``length`` tokens grows with one more token, over all layers.

        Layers whose window is full add nothing any more.
        """
        return sum(b.repeat * _growth(op, length, kv_dtype) for b, op in self.all_ops())

    def state_bytes_per_sequence(self) -> float:
        """Bytes of recurrent state of one sequence over all layers, whatever its length."""
        return sum(b.repeat * op.state_bytes for b, op in self.all_ops() if isinstance(op, Mixer | Opaque))

    def opaque_state_share(self, length: int = 4096, kv_dtype: str = "bfloat16") -> float:
        """Share of the cache and state of a sequence of ``length`` tokens that no understood op keeps."""
        opaque = total = 0.0
        for b, op in self.all_ops():
            held = b.repeat * _held(op, length, kv_dtype)
            total += held
            opaque += held if isinstance(op, Opaque) else 0.0
        return opaque / total if total else 0.0

    def structural_hash(self) -> str:
        """Identity of the structure: op kinds, dims, edges and parameter names and shapes; not the model's name."""
        data = asdict(self)
        data.pop("model_name")
        for block in (data["prologue"], *data["blocks"], data["epilogue"]):
            if not block["returns_more"]:  # what only some models have is not part of the others' identity
                del block["returns_more"]
            for op in block["ops"]:
                if op.get("form") == "routed":
                    del op["form"]
        text = json.dumps(data, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _growth(op: FusedOp, length: int, kv_dtype: str) -> float:
    """Bytes an op adds to the cache of a sequence of ``length`` tokens with the next token."""
    window = op.window if isinstance(op, Attention | LatentAttention) else None
    grows = window is None or length < window
    match op:
        case Attention():
            elements = (op.kv_elements_per_token if grows else 0) + op.pooled_elements_per_token
            return elements * dtype_bytes(kv_dtype)
        case LatentAttention() | Indexer():
            return (op.kv_elements_per_token if grows else 0) * dtype_bytes(kv_dtype)
        case Opaque():
            return op.cache_bytes_per_token
        case _:
            return 0.0


def _held(op: FusedOp, length: int, kv_dtype: str) -> float:
    """Bytes an op keeps for a sequence of ``length`` tokens."""
    window = op.window if isinstance(op, Attention | LatentAttention) else None
    in_window = length if window is None else min(length, window)
    beyond = length - in_window
    held = in_window * _growth(op, 0, kv_dtype) + beyond * _growth(op, length, kv_dtype)
    return held + (op.state_bytes if isinstance(op, Mixer | Opaque) else 0.0)


Found = TypeVar("Found")
GRAPHS_REMEMBERED = 4


def once_per_graph(function: Callable[[OpGraph], Found]) -> Callable[[OpGraph], Found]:
    """Remember what a function says of the last few graphs, which never change; they are told apart by identity."""
    known: list[tuple[OpGraph, Found]] = []

    @wraps(function)
    def remembering(graph: OpGraph) -> Found:
        for other, found in known:
            if other is graph:
                return found
        known[GRAPHS_REMEMBERED - 1 :] = []
        known.insert(0, (graph, function(graph)))
        return known[0][1]

    return remembering
