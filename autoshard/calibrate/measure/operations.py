"""The operations that are timed, each as rows in the format of the measured tables (times in microseconds)."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist
from torch.nn.functional import scaled_dot_product_attention

from autoshard.calibrate.measure.timing import seconds_of
from autoshard.units import US

Row = dict[str, str | int | float]
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
_FLUSH_BYTES = 256e6  # weights are rotated over so many bytes, past any cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What is timed."""

    tokens: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    batches: tuple[int, ...]
    messages: tuple[int, ...]
    copies: tuple[int, ...]


FULL = Sizes(
    tokens=(1, 16, 128, 1024, 4096),
    widths=(1024, 4096, 8192),
    contexts=(256, 2048, 16384),
    batches=(1, 8, 64),
    messages=(2**12, 2**16, 2**20, 2**24, 2**27),
    copies=(2**16, 2**20, 2**24, 2**28),
)
QUICK = Sizes(
    tokens=(1, 8, 32),
    widths=(64, 128),
    contexts=(16, 64),
    batches=(1, 4),
    messages=(2**12, 2**16),
    copies=(2**12, 2**18),
)


def _rotating(make: Callable[[], torch.Tensor], device: torch.device) -> Iterator[torch.Tensor]:
    """Copies of a tensor in turn, so many that none is found in a cache (one on a CPU)."""
    first = make()
    count = 1
    if device.type == "cuda":
        count = max(1, min(16, int(_FLUSH_BYTES / (first.numel() * first.element_size())) + 1))
    return itertools.cycle([first, *(make() for _ in range(count - 1))])


def _product(x: torch.Tensor, weights: Iterator[torch.Tensor]) -> torch.Tensor:
    return x @ next(weights).T


def gemm_rows(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Dense products in bfloat16."""
    for m, k, n in itertools.product(sizes.tokens, sizes.widths, sizes.widths):
        x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
        weights = _rotating(partial(torch.randn, n, k, device=device, dtype=torch.bfloat16), device)
        time_s = seconds_of(partial(_product, x, weights), device)
        yield {"framework": "torch", "gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "time_us": time_s / US}


def moe_rows(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Routed layers of 8 experts, 2 a token: gather, gate and up, silu, down, weighted sum; balanced routing."""
    experts, top_k = 8, 2
    for tokens, hidden in itertools.product(sizes.tokens, sizes.widths[:2]):
        up = torch.randn(experts, hidden, 2 * hidden, device=device, dtype=torch.bfloat16)
        down = torch.randn(experts, hidden, hidden, device=device, dtype=torch.bfloat16)
        x = torch.randn(tokens, hidden, device=device, dtype=torch.bfloat16)
        rows = -(-tokens * top_k // experts)
        index = (torch.arange(rows * experts, device=device) % tokens).view(experts, rows)

        def layer(
            x: torch.Tensor = x, up: torch.Tensor = up, down: torch.Tensor = down, index: torch.Tensor = index
        ) -> torch.Tensor:
            gate, value = torch.bmm(x[index], up).chunk(2, -1)
            out = torch.bmm(torch.nn.functional.silu(gate) * value, down)
            return torch.zeros_like(x).index_add_(0, index.flatten(), out.flatten(0, 1))

        yield {
            "framework": "torch",
            "moe_dtype": "bfloat16",
            "model": "measure",
            "hidden_size": hidden,
            "inter_size": hidden,
            "topk": top_k,
            "num_experts": experts,
            "moe_tp_size": 1,
            "moe_ep_size": 1,
            "distribution": "balanced",
            "num_tokens": tokens,
            "time_us": seconds_of(layer, device) / US,
        }


def attention_rows(sizes: Sizes, device: torch.device, *, prefill: bool) -> Iterator[Row]:
    """Attention of 8 heads of width 64 over 2 kv heads: one new token over a cache, or whole causal prompts."""
    heads, kv_heads, width = 8, 2, 64
    for batch, context in itertools.product(sizes.batches, sizes.contexts):
        if batch * context > sizes.batches[-1] * sizes.contexts[-1] // 4:
            continue
        queries = context if prefill else 1
        q = torch.randn(batch, heads, queries, width, device=device, dtype=torch.bfloat16)
        k, v = (torch.randn(batch, kv_heads, context, width, device=device, dtype=torch.bfloat16) for _ in range(2))

        def core(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v) -> torch.Tensor:
            return scaled_dot_product_attention(q, k, v, is_causal=prefill, enable_gqa=True)

        row: Row = {
            "framework": "torch",
            "kv_cache_dtype": "bfloat16",
            "batch_size": batch,
            "num_heads": heads,
            "num_key_value_heads": kv_heads,
            "head_dim": width,
            "time_us": seconds_of(core, device) / US,
        }
        yield {**row, "attn_dtype": "bfloat16", "isl": context} if prefill else {**row, "ctx_len": context}


def copy_rows(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Copies of ``size_bytes``: as many are read as written."""
    for size in sizes.copies:
        source = torch.zeros(size, device=device, dtype=torch.uint8)
        target = torch.empty_like(source)
        time_s = seconds_of(partial(target.copy_, source), device)
        yield {"op": "copy", "size_bytes": size, "time_us": time_s / US}


def collective_rows(sizes: Sizes, device: torch.device) -> Iterator[Row]:
    """Collectives of all ranks of the default group; bytes as nccl-tests names them."""
    ranks = dist.get_world_size()
    for size in sizes.messages:
        count = size // 4 // ranks * ranks
        whole, part = torch.zeros(count, device=device), torch.zeros(count // ranks, device=device)
        other = torch.zeros_like(whole)
        pieces = list(whole.chunk(ranks))
        calls: dict[str, Callable[[], object]] = {
            "all_reduce": partial(dist.all_reduce, whole),
            "all_gather": partial(dist.all_gather, pieces, part),
            "reduce_scatter": partial(_reduce_scatter, part, whole),
            "alltoall": partial(dist.all_to_all_single, other, whole),
        }
        for op, call in calls.items():
            dist.barrier()
            time_s = seconds_of(call, device)
            yield {"op": op, "dtype": "float", "num_gpus": ranks, "size_bytes": count * 4, "time_us": time_s / US}
