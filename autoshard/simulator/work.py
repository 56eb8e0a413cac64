"""Seconds of a fused op's own computation under one option, at every degree point, and the bytes it keeps.

Which sizes an option divides comes from the option; how long a kernel takes from `autoshard.cost`.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import (
    attention_decode_s,
    attention_prefill_s,
    experts_touched,
    gemm_s,
    grouped_gemm_s,
    memory_op_s,
    mla_decode_s,
    mla_prefill_s,
)
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
from autoshard.simulator.amounts import Amounts
from autoshard.simulator.points import Points
from autoshard.units import dtype_bytes
from autoshard.workload import Workload

FloatArray = NDArray[np.float64]
ACTIVATION_BYTES = 2.0
"""Activations move in bfloat16, whatever the weights are stored in."""


def mean_window_context(window: int, tokens: float) -> float:
    """Mean keys a token of a prompt sees in a window shorter than it: ``min(i, w)`` over i, ``w - w^2 / 2n``."""
    return window - window**2 / (2.0 * tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkModel:
    """Prices the computation of fused ops for a workload on a device at given points."""

    device: Device
    workload: Workload
    points: Points
    amounts: Amounts

    def _share(self, axis: Axis | None) -> FloatArray:
        if axis is None:
            return np.ones(len(self.points))
        return self.points.sizes[axis].astype(np.float64)

    def seconds(self, op: FusedOp, option: Option | None) -> FloatArray:
        """Compute time of one pass of ``op`` ([points]); an `Add` has no option and is part of a fused kernel."""
        inner = self._share(None if option is None else option.split_in)
        outer = self._share(None if option is None else option.split_out)
        tokens, dtype = self.amounts.tokens, self.workload.dtype
        match op:
            case Linear():
                # Logits stay in 16 bits, as the head's weights do.
                dtype = "bfloat16" if op.is_head and dtype_bytes(dtype) < ACTIVATION_BYTES else dtype
                return gemm_s(self.device, tokens, op.in_dim.size / inner, op.out_dim.size / outer, dtype)
            case Router():
                scores = gemm_s(self.device, tokens, op.hidden.size / inner, op.experts.size / outer)
                return scores + memory_op_s(self.device, tokens * op.experts.size * 4.0)
            case ExpertsLinear():
                return self._experts(op, inner, outer)
            case Attention():
                return self._attention(op, split=option is not None and option.choice == 0)
            case LatentAttention():
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
                width = op.width.size * (op.num_inputs_wide + 1) / outer
                return memory_op_s(self.device, rows * width * ACTIVATION_BYTES)
            case Norm():
                return memory_op_s(self.device, 2.0 * tokens * op.width.size / outer * ACTIVATION_BYTES)
            case Embedding():
                return memory_op_s(self.device, 2.0 * tokens * op.hidden.size / outer * ACTIVATION_BYTES)
            case Add():
                # One more read of the residual by the kernel of the norm that follows: no launch of its own.
                extra = tokens * op.width.size * ACTIVATION_BYTES
                return memory_op_s(self.device, extra) - memory_op_s(self.device, 0.0)
            case Opaque():
                peak = self.device.peak_flops_per_s("bfloat16")
                return op.flops_per_token * tokens / peak + memory_op_s(self.device, float(op.num_parameters) * 2.0)

    def _experts(self, op: ExpertsLinear, inner: FloatArray, outer: FloatArray) -> FloatArray:
        local = op.experts.size / self._share("ep")
        touched = experts_touched(local, op.experts.size, op.top_k, self.amounts.group_tokens)
        return grouped_gemm_s(
            self.device,
            self.amounts.pairs,
            local,
            touched,
            op.in_dim.size / inner,
            op.out_dim.size / outer,
            self.workload.dtype,
        )

    def _attention(self, op: Attention, *, split: bool) -> FloatArray:
        heads = op.heads.size / self._share("tp" if split else None)
        kv_heads = op.kv_heads.size / self._share("tp_kv" if split else None)
        context, tokens = self.workload.mean_context, float(self.workload.tokens_per_sequence)
        if op.window is not None and self.workload.phase == "decode":
            context = min(context, float(op.window))
        elif op.window is not None and op.window < tokens:
            context = mean_window_context(op.window, tokens)
        if self.workload.phase == "decode":
            if op.shared_kv:  # the cache is read once for both
                kv_heads = kv_heads * op.qk_dim / (op.qk_dim + op.v_dim)
            return attention_decode_s(
                self.device,
                self.amounts.sequences,
                context,
                heads,
                kv_heads,
                op.qk_dim,
                op.v_dim,
                dtype_bytes(self.workload.kv_dtype),
            )
        return attention_prefill_s(
            self.device,
            self.amounts.sequences,
            self.workload.tokens_per_sequence,
            context,
            heads,
            kv_heads,
            op.qk_dim,
            op.v_dim,
        )

    def _latent_attention(self, op: LatentAttention, *, split: bool) -> FloatArray:
        """Absorbed in decode (one shared latent head that is key and value at once), expanded over prompts."""
        heads = op.heads.size / self._share("tp" if split else None)
        context = op.seen(self.workload.mean_context)
        if self.workload.phase == "decode":
            return mla_decode_s(
                self.device,
                self.amounts.sequences,
                context,
                heads,
                op.latent.size,
                op.rope_dim,
                dtype_bytes(self.workload.kv_dtype),
            )
        tokens = self.workload.tokens_per_sequence
        qk = op.nope_dim + op.rope_dim
        return mla_prefill_s(self.device, self.amounts.sequences, tokens, context, heads, qk, op.v_dim)

    def _indexer(self, op: Indexer) -> FloatArray:
        """A small attention without values: all heads read one cached key."""
        sequences, context = self.amounts.sequences, self.workload.mean_context
        heads = np.full(len(self.points), float(op.heads.size))
        if self.workload.phase == "decode":
            cache_bytes = dtype_bytes(self.workload.kv_dtype)
            return attention_decode_s(self.device, sequences, context, heads, 1.0, op.head_dim, 0, cache_bytes)
        tokens = self.workload.tokens_per_sequence
        return attention_prefill_s(self.device, sequences, tokens, context, heads, 1.0, op.head_dim, 0)

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
            part = np.ones(len(self.points))
            if param.shared_with is not None:
                part = np.where(self.points.pp > 1, 1.0, np.inf)
            for sharding in option.params[i] if option is not None and i < len(option.params) else ():
                part = part * self.points.sizes[sharding.axis]
            total += param.numel * self._element_bytes(param, quantised=quantised) / part
        return total

    def _element_bytes(self, param: Param, *, quantised: bool) -> float:
        if quantised and param.role in ("weight", "slice"):
            return dtype_bytes(self.workload.dtype)
        return min(dtype_bytes(param.dtype), ACTIVATION_BYTES)

    def kv_bytes(self, op: FusedOp, option: Option | None) -> FloatArray:
        """Bytes of the KV cache or state of one instance on one rank, over all microbatches in flight.

        A latent cache and an indexer's keys are whole on every rank; a mixer that runs by heads has their state only.
        """
        in_flight = (self.points.sequences * self.points.microbatches).astype(np.float64)
        if isinstance(op, Mixer):
            return in_flight * op.state_bytes / self._share(None if option is None else option.split_out)
        if isinstance(op, LatentAttention | Indexer):
            window = op.window if isinstance(op, LatentAttention) else None
            cached = self.workload.cached_tokens_per_sequence if window is None else window
            cached = min(cached, self.workload.cached_tokens_per_sequence)
            return in_flight * float(cached) * op.kv_elements_per_token * dtype_bytes(self.workload.kv_dtype)
        if not isinstance(op, Attention):
            return np.zeros(len(self.points))
        split = option is not None and option.choice == 0
        cached = self.workload.cached_tokens_per_sequence
        if op.window is not None:
            cached = min(cached, op.window)
        per_token = op.kv_elements_per_token * dtype_bytes(self.workload.kv_dtype)
        held = self.points.sequences * self.points.microbatches * float(cached)
        return held * per_token / self._share("tp_kv" if split else None)
