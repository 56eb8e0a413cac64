"""Times one rank's share of every fused op of a strategy, at its local shapes: what a single device can measure of it.

Each op is run alone on random data of the shapes one rank has: local weights as the plan places them, tokens of one
microbatch, a KV cache of the context. Layers of a kind are alike, so one of each is timed. Ops whose inside is not a
closed operation here (recurrent mixers, indexers, combinations, what was not understood) are listed without a time.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from autoshard.calibrate.measure.timing import seconds_of
from autoshard.emit.grouped import grouped_linear
from autoshard.ir import (
    Activation,
    Add,
    Attention,
    Block,
    Embedding,
    ExpertsLinear,
    LatentAttention,
    Linear,
    Norm,
    OpGraph,
    Router,
)
from autoshard.sharding import Layout, Strategy, mesh_of, place_all, resolve_graph
from autoshard.sharding.flow import ResolvedOp
from autoshard.sharding.legality import axis_sizes
from autoshard.sharding.space import tensor_axes


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """Measured seconds of one call of an op on one rank; None where it was not timed, with the reason."""

    block: str
    op: str
    kind: str
    repeat: int
    shapes: str
    measured_s: float | None
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one rank works on: sequences and their context, sizes of axes, dtype and device."""

    sequences: int
    length: int
    context: int
    sizes: dict[str, int]
    dtype: torch.dtype
    device: torch.device

    @property
    def tokens(self) -> int:
        """Tokens of a dp rank in one pass."""
        return self.sequences * self.length

    def random(self, *shape: int) -> Tensor:
        """Small random values."""
        return torch.randn(shape, device=self.device, dtype=torch.float32).mul_(0.1).to(self.dtype)


Timed = tuple[Callable[[], object], str]
"""A call and, in words, its shapes."""


def time_strategy(
    graph: OpGraph, strategy: Strategy, *, sequences: int, length: int, context: int, device: str
) -> tuple[OpTime, ...]:
    """Times of all fused ops of one rank, a layer of every kind.

    Args:
        graph: the model at full size.
        strategy: degrees and choices.
        sequences: of one microbatch on a dp rank.
        length: new tokens a sequence.
        context: tokens in a sequence's cache, the new ones included.
        device: ``cpu`` or ``cuda``.
    """
    stage = mesh_of(graph, strategy.degrees)
    share = Share(
        sequences=sequences,
        length=length,
        context=context,
        sizes=axis_sizes(stage),
        dtype=getattr(torch, graph.dtype),
        device=torch.device(device),
    )
    local = {p.fqn: p.local_shape(stage) for p in place_all(graph, strategy)}
    resolved = resolve_graph(graph, strategy)
    found = []
    with torch.no_grad():
        for block in graph.components():
            for item in resolved[block.name]:
                weights = [local[block.fqn(p.fqn, 0)] for p in item.op.params if p.role == "weight"]
                found.append(_time(block, item, weights, share))
    return tuple(found)


def _time(block: Block, item: ResolvedOp, weights: list[tuple[int, ...]], share: Share) -> OpTime:
    op = item.op
    made = _call(block, item, weights, share)
    measured, shapes, reason = None, "", f"a {op.kind} is not timed alone"
    if made is not None:
        call, shapes = made
        measured, reason = seconds_of(call, share.device), None  # type: ignore[assignment]
    return OpTime(
        block=block.name,
        op=op.name,
        kind=op.kind,
        repeat=block.repeat,
        shapes=shapes,
        measured_s=measured,
        reason=reason,
    )


def _call(block: Block, item: ResolvedOp, weights: list[tuple[int, ...]], share: Share) -> Timed | None:
    op = item.op
    split = item.option is not None and item.option.choice == 0
    match op:
        case Embedding():
            ids = torch.zeros(share.tokens, dtype=torch.long, device=share.device)
            table = share.random(*weights[0])
            return partial(F.embedding, ids, table), f"{share.tokens} of {_by(weights[0])}"
        case Linear() | Router():
            x, w = share.random(share.tokens, weights[0][1]), share.random(*weights[0])
            call = partial(F.linear, x, w) if isinstance(op, Linear) else partial(_route, x, w, op.top_k)
            return call, f"{share.tokens} x {_by(weights[0])}"
        case Norm():
            width = op.width.size // (share.sizes[tensor_axes(block, op).shard] if split else 1)
            x = share.random(share.tokens, width)
            return partial(F.rms_norm, x, (width,)), f"{share.tokens} x {width}"
        case ExpertsLinear() if weights and len(weights[0]) == 3:
            return _experts(op, weights[0], share)
        case Activation() | Add():
            return _pointwise(block, item, split, share)
        case Attention():
            tp, kv = (share.sizes["tp"], share.sizes["tp_kv"]) if split else (1, 1)
            return _attend(op.heads.size // tp, op.kv_heads.size // kv, op.qk_dim, op.v_dim, op.window, share)
        case LatentAttention():
            heads = op.heads.size // (share.sizes["tp"] if split else 1)
            # Absorbed, as engines decode: every head reads the one latent and its rope key.
            return _attend(heads, 1, op.latent.size + op.rope_dim, op.latent.size, op.selected, share)
        case _:
            return None


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _route(x: Tensor, w: Tensor, top_k: int) -> Tensor:
    return F.linear(x, w).softmax(-1).topk(top_k).values


def _experts(op: ExpertsLinear, shape: tuple[int, ...], share: Share) -> Timed:
    """This rank's experts on their part of the pairs of all dp ranks, dealt evenly."""
    num_local = shape[0]
    inner, outer = (shape[1], shape[2]) if op.transposed else (shape[2], shape[1])
    pairs = share.tokens * share.sizes["dp"] * op.top_k
    rows = max(1, math.ceil(pairs * num_local / op.experts.size))
    counts = torch.full((num_local,), rows // num_local, dtype=torch.long, device=share.device)
    counts[: rows - int(counts.sum())] += 1
    x, w = share.random(rows, inner), share.random(num_local, inner, outer)
    return partial(grouped_linear, x, w, counts), f"{rows} rows on {num_local} x {inner} x {outer}"


def _pointwise(block: Block, item: ResolvedOp, split: bool, share: Share) -> Timed:
    op = item.op
    assert isinstance(op, Activation | Add)
    if isinstance(op, Add):
        width = op.width.size // (share.sizes["tp"] if item.delivered is Layout.SHARDED else 1)
        x = share.random(share.tokens, width)
        return partial(torch.add, x, x.clone()), f"{share.tokens} x {width}"
    width = op.width.size // (share.sizes[tensor_axes(block, op).shard] if split else 1)
    rows = share.tokens
    if op.routed:
        rows = max(1, math.ceil(share.tokens * share.sizes["dp"] * op.top_k / share.sizes["ep"]))
    x = share.random(rows, width)
    if op.num_inputs_wide == 1:
        return partial(F.silu, x), f"{rows} x {width}"
    return partial(_gated, x, x.clone()), f"{rows} x {width}"


def _gated(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def _attend(heads: int, kv_heads: int, qk: int, v_dim: int, window: int | None, share: Share) -> Timed:
    """One pass of new tokens over the cache (whole causal prompts where all tokens are new)."""
    seen = share.context if window is None else min(window, share.context)
    prefill = share.length > 1
    keys = share.length if prefill else seen
    q = share.random(share.sequences, heads, share.length, qk)
    k = share.random(share.sequences, kv_heads, keys, qk)
    v = share.random(share.sequences, kv_heads, keys, v_dim)
    call = partial(F.scaled_dot_product_attention, q, k, v, is_causal=prefill, enable_gqa=True)
    return call, f"{share.sequences} x {heads} heads on {keys} x {kv_heads} kv heads"
