"""What one kind of kernel reaches of a device: shares of its peaks, floors, and how it fills the machine.

The formulas that use these constants are in `autoshard.cost` (one module a kind). A constant that is not given is
"off": the law is then the plain roofline ``launch + max(flops / (peak c), bytes / (bandwidth m))``.
"""

import math
from dataclasses import dataclass
from typing import Literal, get_args

from autoshard.errors import InvalidInputError

KernelKind = Literal[
    "gemm",
    "grouped_gemm",
    "attention_decode",
    "attention_prefill",
    "memory",
    "mla_decode",
    "mla_prefill",
    "scan",
]
KERNEL_KINDS: tuple[KernelKind, ...] = get_args(KernelKind)

_SHARES = ("compute_efficiency", "memory_efficiency")
_NOT_NEGATIVE = (
    "launch_s",
    "k_latency_s",
    "quantise_efficiency",
    "throttle",
    "expert_s",
    "rows_efficiency",
    "all_rows_efficiency",
    "saturation_bytes",
    "split_s",
    "split_tokens",
    "unit_s",
    "query_efficiency",
    "kv_efficiency",
    "softmax_width",
    "tile",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelLaw:
    """Constants of one kind of kernel. Launches are those of a replayed CUDA graph.

    Attributes:
        compute_efficiency: Share of the peak FLOP/s that full tiles reach.
        memory_efficiency: Share of the memory bandwidth that large transfers reach.
        launch_s: What any launch costs.
        overlap: How well arithmetic and loads overlap: exponent p of ``(c^p + m^p)^(1/p)``; infinite is the roofline.
        tile_edge: Cost of loading one row or column of an output tile, in multiply-adds per element of the contracted
            dim; None leaves tiles and waves out.
        k_latency_s: Serial latency of the main loop per element of the contracted dim.
        quantise_efficiency: Share of the memory bandwidth at which activations are quantised before the product.
        throttle: Relative slow-down of kernels much longer than a millisecond (power limit).
        expert_s: Time for every expert that the device holds (sorting, empty tiles).
        rows_efficiency: Share of the memory bandwidth at which (token, expert) rows are gathered and scattered.
        all_rows_efficiency: The same for rows that every rank of an expert-parallel group touches, its own or not.
        saturation_bytes: Bytes at which half the bandwidth is reached (square-root law, as for links).
        split_s: Latency of walking and merging a split KV cache, in the limit of long contexts.
        split_tokens: Context at which half of ``split_s`` is paid.
        unit_s: Time of one unit of work (a sequence's kv head, a query tile), on every compute unit in turn.
        query_efficiency: Share of the memory bandwidth for queries and outputs.
        kv_efficiency: Share of the memory bandwidth for keys and values written to the cache.
        softmax_width: The softmax, as a number of head elements more.
        tile: Rows that a tile has at least (query tokens in prefill, heads in MLA decode).
        source: Where the constants come from, as ``[fitted: ...]`` or ``[assumed ...]``.
    """

    compute_efficiency: float
    memory_efficiency: float
    launch_s: float
    overlap: float = math.inf
    tile_edge: float | None = None
    k_latency_s: float = 0.0
    quantise_efficiency: float = 0.0
    throttle: float = 0.0
    expert_s: float = 0.0
    rows_efficiency: float = 0.0
    all_rows_efficiency: float = 0.0
    saturation_bytes: float = 0.0
    split_s: float = 0.0
    split_tokens: float = 0.0
    unit_s: float = 0.0
    query_efficiency: float = 0.0
    kv_efficiency: float = 0.0
    softmax_width: float = 0.0
    tile: float = 0.0
    source: str = ""

    def __post_init__(self) -> None:
        if not all(0 < getattr(self, name) <= 1 for name in _SHARES):
            raise InvalidInputError(f"efficiencies of a kernel must lie in (0, 1]: {self}")
        if self.launch_s < 0:
            raise InvalidInputError(f"the launch time of a kernel must not be negative, got {self.launch_s:g} s")
        for name in _NOT_NEGATIVE:
            if not 0 <= getattr(self, name) < math.inf:
                raise InvalidInputError(f"{name} of a kernel must not be negative, got {getattr(self, name):g}")
        if self.overlap < 1:
            raise InvalidInputError(f"overlap of a kernel is an exponent of at least 1, got {self.overlap:g}")
        if self.tile_edge is not None and not 0 <= self.tile_edge < math.inf:
            raise InvalidInputError(f"tile_edge of a kernel must not be negative, got {self.tile_edge:g}")
