"""Seconds of a fused op's own computation under one option, at every degree point, and the bytes it keeps.

Which sizes an option divides comes from the option; how long a kernel takes from `autoshard.cost`.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import Kernels, memory_op_s, most_touched
from autoshard.hardware import Device
from autoshard.ir import (
    Activation,
    Add,
    Attention,
    Combine,
    Embedding,
    ExpertsLinear,
    FusedOp,
    Indexer,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    Opaque,
    Param,
    Router,
)
from autoshard.sharding.layout import Axis
from autoshard.sharding.option import Option
from autoshard.sharding.padding import PLAIN, Grain, padded_width
from autoshard.sharding.wider import SEQUENCE
from autoshard.simulator.amounts import Amounts
from autoshard.simulator.launches import Merged
from autoshard.simulator.lengths import Lengths
from autoshard.simulator.points import Points
from autoshard.units import dtype_bytes
from autoshard.workload import Workload

FloatArray = NDArray[np.float64]
ACTIVATION_BYTES = 2.0
"""Activations move in bfloat16, whatever the weights are stored in."""


def mean_window_context(window: int, tokens: float) -> float:
    """Mean keys a token of a prompt sees in a window shorter than it: ``min(i, w)`` over i, ``w - w^2 / 2n``."""
    return window - window**2 / (2.0 * tokens)


def element_bytes(workload: Workload, param: Param, *, quantised: bool) -> float:
    """Bytes of an element: of the workload's dtype if ``quantised``, else of the model's, at most 16 bits wide."""
    if quantised and param.role in ("weight", "slice"):
        return dtype_bytes(workload.dtype)
    return min(dtype_bytes(param.dtype), ACTIVATION_BYTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkModel:
    """Prices the computation of fused ops in one pass of a workload, by a device's kernels, at given points.

    ``merged`` gives, for a product that runs as one with others, all of them (itself included), each with the axis
    that splits its output.
    """

    kernels: Kernels
    workload: Workload
    lengths: Lengths
    points: Points
    amounts: Amounts
    merged: Merged = field(default_factory=dict)

    @property
    def device(self) -> Device:
        """The device."""
        return self.kernels.device

    def _share(self, axis: Axis | None) -> FloatArray:
        if axis is None:
            return np.ones(len(self.points))
        return self.points.sizes[axis].astype(np.float64)

    def seconds(self, op: FusedOp, option: Option | None) -> FloatArray:
        """Compute time of one pass of ``op`` ([points]); an `Add` has no option and is part of a fused kernel."""
        outer = self._share(None if option is None else option.split_out)
        tokens = self.amounts.tokens
        match op:
            case Linear():
                return self._linear(op, option)
            case Router():
                inner, scored = self._read(op.hidden.size, option), self._made(op.experts.size, option)
                scores = self.kernels.gemm_s(tokens, inner, scored, "router")
                if self.kernels.engine is not None:  # the choice of experts is part of the fused layer's law
                    return scores
                return scores + memory_op_s(self.device, tokens * op.experts.size * 4.0)
            case ExpertsLinear():
                return self._experts(op, option)
            case Attention():
                if option is not None and option.choice == SEQUENCE:
                    return self._attention_to_shares(op)
                return self._attention(op, split=option is not None and option.choice == 0)
            case LatentAttention():
                if option is not None and option.choice == SEQUENCE:
                    return self._latent_attention_to_shares(op)
                return self._latent_attention(op, split=option is not None and option.choice == 0)
            case Indexer():
                return self._indexer(op)
            case Mixer():
                return self._mixer(op, outer)
            case Combine():
                moved = (len(op.inputs) + 1) * op.width.size / outer
                return memory_op_s(self.device, tokens * moved * ACTIVATION_BYTES)
            case Activation():
                rows = self.amounts.pairs if op.routed else tokens
                width = self._made(op.width.size, option) * (op.num_inputs_wide + 1)
                return memory_op_s(self.device, rows * width * ACTIVATION_BYTES)
            case Norm():
                return memory_op_s(self.device, 2.0 * tokens * self._made(op.width.size, option) * ACTIVATION_BYTES)
            case Embedding():
                return memory_op_s(self.device, 2.0 * tokens * self._made(op.hidden.size, option) * ACTIVATION_BYTES)
            case Add():
                # One more read of the residual by the kernel of the norm that follows: no launch of its own.
                extra = tokens * op.width.size * ACTIVATION_BYTES
                return memory_op_s(self.device, extra) - memory_op_s(self.device, 0.0)
            case Opaque():
                peak = self.device.peak_flops_per_s("bfloat16")
                return op.flops_per_token * tokens / peak + memory_op_s(self.device, float(op.num_parameters) * 2.0)

    def _part(self, width: int, axis: Axis | None, packed: int = 1, grain: Grain = PLAIN) -> FloatArray:
        """A rank's part of a width over an axis, filled up where it does not divide."""
        if axis is None:
            return np.full(len(self.points), float(width))
        ranks = self.points.sizes[axis]
        found: FloatArray = padded_width(width, ranks, packed=packed, grain=grain) / ranks
        return found

    def _read(self, width: int, option: Option | None) -> FloatArray:
        """A rank's part of what an op contracts."""
        return self._part(width, None if option is None else option.split_in, grain=_grain(option))

    def _made(self, width: int, option: Option | None, packed: int = 1) -> FloatArray:
        """A rank's part of what an op produces."""
        return self._part(width, None if option is None else option.split_out, packed, _grain(option))

    def _linear(self, op: Linear, option: Option | None) -> FloatArray:
        """A product, or its share of those that run with it, all split as this one is."""
        tokens, width = self.amounts.tokens, self._made(op.out_dim.size, option, op.packed)
        total = width
        if option is not None and op.name in self.merged:
            splits = option.choice == 0
            total = np.zeros(len(self.points))
            for other, axis, grain in self.merged[op.name]:
                total = total + self._part(other.out_dim.size, axis if splits else None, other.packed, grain)
        inner = self._read(op.in_dim.size, option)
        whole = self.kernels.gemm_s(tokens, inner, total, "head" if op.is_head else "dense")
        return whole * (width / total)

    def _experts(self, op: ExpertsLinear, option: Option | None) -> FloatArray:
        local = self._part(op.experts.size, "ep")
        touched = most_touched(
            op.experts.size, op.top_k, self.amounts.group_tokens, self._share("ep"), self.amounts.skew
        ) * (local * self._share("ep") / op.experts.size)
        rows = self.amounts.group_tokens * op.top_k * op.in_dim.size
        return self.kernels.grouped_s(
            self.amounts.pairs,
            local,
            touched,
            self._read(op.in_dim.size, option),
            self._made(op.out_dim.size, option, op.packed),
            rows if op.stage == "up" else np.zeros(len(self.points)),
        )

    def _attention(self, op: Attention, *, split: bool) -> FloatArray:
        grain = (op.heads.size // op.kv_heads.size, 1)
        heads = self._part(op.heads.size, "tp" if split else None, grain=grain)
        kv_heads = self._part(op.kv_heads.size, "tp_kv" if split else None)
        context, sequences = self.lengths.context, self.amounts.sequences
        pooled = op.seen_pooled(context)
        if self.lengths.phase == "decode":
            context = op.seen(context) + pooled
            if op.shared_kv:  # the cache is read once for both
                kv_heads = kv_heads * op.qk_dim / (op.qk_dim + op.v_dim)
            return self.kernels.decode_s(sequences, context, heads, kv_heads, op.qk_dim, op.v_dim)
        if op.window is not None and op.window < self.lengths.prompt:
            context = mean_window_context(op.window, self.lengths.prompt)
        context += pooled
        return self.kernels.prefill_s(
            sequences, self.lengths.tokens, context, heads, kv_heads, op.qk_dim, op.v_dim
        )  # fmt: skip

    def _latent_attention(self, op: LatentAttention, *, split: bool) -> FloatArray:
        """Absorbed in decode (one shared latent head that is key and value at once), expanded over prompts."""
        heads = self._part(op.heads.size, "tp" if split else None)
        context, sequences = op.seen(self.lengths.context), self.amounts.sequences
        if self.lengths.phase == "decode":
            return self.kernels.mla_decode_s(sequences, context, heads, op.latent.size, op.rope_dim)
        qk = op.nope_dim + op.rope_dim
        return self.kernels.mla_prefill_s(sequences, self.lengths.tokens, context, heads, qk, op.v_dim)

    def _attention_to_shares(self, op: Attention) -> FloatArray:
        """Decode attention of the heads of some kv heads to a share of their tokens, and the sum of the shares."""
        heads, kv_heads = self._part(op.heads.size, "tp_kv"), self._part(op.kv_heads.size, "tp_kv")
        if op.shared_kv:
            kv_heads = kv_heads * op.qk_dim / (op.qk_dim + op.v_dim)
        seen = op.seen(self.lengths.context) / self._share("tp_rep")
        core = self.kernels.decode_s(self.amounts.sequences, seen, heads, kv_heads, op.qk_dim, op.v_dim)
        return core + self._sum_of_shares_s(heads, op.v_dim, "tp_rep")

    def _latent_attention_to_shares(self, op: LatentAttention) -> FloatArray:
        """Absorbed decode attention of all heads to a share of the latents, and the sum of the shares."""
        heads = self._part(op.heads.size, None)
        seen = op.seen(self.lengths.context) / self._share("tp")
        core = self.kernels.mla_decode_s(self.amounts.sequences, seen, heads, op.latent.size, op.rope_dim)
        return core + self._sum_of_shares_s(heads, op.latent.size, "tp")

    def _sum_of_shares_s(self, heads: FloatArray, width: int, axis: Axis) -> FloatArray:
        """A pass over the partial outputs that arrived, as wide as those sent, and over the sum of them."""
        rows = self.amounts.tokens * heads * (1.0 + 1.0 / self._share(axis))
        return memory_op_s(self.device, rows * width * ACTIVATION_BYTES)

    def _indexer(self, op: Indexer) -> FloatArray:
        """A small attention without values: all heads read one cached key."""
        sequences, context = self.amounts.sequences, self.lengths.context / op.pooled
        heads, one = np.full(len(self.points), float(op.heads.size)), np.ones(1)
        if self.lengths.phase == "decode":
            return self.kernels.decode_s(sequences, context, heads, one, op.head_dim, 0)
        return self.kernels.prefill_s(sequences, self.lengths.tokens, context, heads, one, op.head_dim, 0)

    def _mixer(self, op: Mixer, outer: FloatArray) -> FloatArray:
        """The larger of its arithmetic and its traffic: state in and out once a pass, activations in and out.

        All of it is per head, so that ``outer`` ranks each have their share.
        """
        tokens = self.amounts.tokens
        arithmetic = op.flops(1.0) * tokens / outer / self.device.peak_flops_per_s("bfloat16")
        moved = 2.0 * self.amounts.sequences * op.state_bytes + 4.0 * tokens * op.width.size * ACTIVATION_BYTES
        return np.maximum(arithmetic, memory_op_s(self.device, moved / outer))

    def weight_bytes(self, op: FusedOp, option: Option | None) -> FloatArray:
        """Bytes of an op's parameters on one rank; an alias has none, unless its owner is on another pipeline stage.

        Matrices and experts are stored in the workload's dtype, everything else in the model's, at most 16 bits wide.
        """
        total = np.zeros(len(self.points))
        quantised = isinstance(op, Linear | ExpertsLinear) and not getattr(op, "is_head", False)
        for i, param in enumerate(op.params):
            held = np.full(len(self.points), float(param.numel))
            if param.shared_with is not None:
                held = np.where(self.points.pp > 1, held, 0.0)
            for s in option.params[i] if option is not None and i < len(option.params) else ():
                if s.member is not None:
                    held = held / self.points.sizes[s.axis]
                    continue
                whole = param.shape[s.dim]
                held = held / whole * self._part(whole, s.axis, s.packed, s.grain)
            total += held * element_bytes(self.workload, param, quantised=quantised)
        return total

    def kv_bytes(self, op: FusedOp, option: Option | None) -> FloatArray:
        """Bytes of the KV cache or state of one instance on one rank, over all microbatches in flight.

        A latent cache and an indexer's keys are whole on every rank, unless they are split over their tokens; a mixer
        that runs by heads has their state only.
        """
        if isinstance(op, Attention | LatentAttention) and option is not None and option.choice == SEQUENCE:
            return self._shared_kv_bytes(op)
        in_flight = (self.points.sequences * self.points.microbatches).astype(np.float64)
        if isinstance(op, Mixer):
            return in_flight * op.state_bytes / self._share(None if option is None else option.split_out)
        if isinstance(op, Opaque):
            return in_flight * (op.state_bytes + op.cache_bytes_per_token * self.lengths.cached)
        if isinstance(op, LatentAttention | Indexer):
            window = op.window if isinstance(op, LatentAttention) else None
            cached = self.lengths.cached if window is None else window
            cached = min(cached, self.lengths.cached)
            return in_flight * float(cached) * op.kv_elements_per_token * dtype_bytes(self.workload.kv_dtype)
        if not isinstance(op, Attention):
            return np.zeros(len(self.points))
        split = option is not None and option.choice == 0
        cached = self.lengths.cached
        if op.window is not None:
            cached = min(cached, op.window)
        per_token = op.kv_elements_per_token * dtype_bytes(self.workload.kv_dtype)
        pooled = op.pooled_elements_per_token * dtype_bytes(self.workload.kv_dtype)
        held = float(cached) * per_token + float(self.lengths.cached) * pooled
        return in_flight * held / op.kv_heads.size * self._part(op.kv_heads.size, "tp_kv" if split else None)

    def _shared_kv_bytes(self, op: Attention | LatentAttention) -> FloatArray:
        """Bytes of a cache whose tokens are dealt out one by one: the fullest rank's."""
        cached = self.lengths.cached if op.window is None else min(self.lengths.cached, op.window)
        axis: Axis = "tp_rep" if isinstance(op, Attention) else "tp"
        heads = self.points.sizes["tp_kv"] if isinstance(op, Attention) else 1
        tokens = np.ceil(cached / self._share(axis))
        in_flight = self.points.sequences * self.points.microbatches
        return in_flight * tokens * op.kv_elements_per_token / heads * dtype_bytes(self.workload.kv_dtype)


def _grain(option: Option | None) -> Grain:
    return PLAIN if option is None else option.grain
