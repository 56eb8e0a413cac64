"""Pydantic models of device and cluster files, in the units of datasheets."""

import math
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from autoshard.errors import InvalidInputError
from autoshard.hardware.dispatch_law import DispatchLaw
from autoshard.hardware.kernel_law import KernelLaw
from autoshard.hardware.link import CollectiveLaw
from autoshard.units import MB, US

NS = 1e-9
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]

KERNEL_FIELDS: Mapping[str, tuple[str, float]] = {
    "compute": ("compute_efficiency", 1.0),
    "memory": ("memory_efficiency", 1.0),
    "launch_us": ("launch_s", US),
    "overlap": ("overlap", 1.0),
    "tile_edge": ("tile_edge", 1.0),
    "k_latency_ns": ("k_latency_s", NS),
    "quantise": ("quantise_efficiency", 1.0),
    "throttle": ("throttle", 1.0),
    "expert_us": ("expert_s", US),
    "rows": ("rows_efficiency", 1.0),
    "all_rows": ("all_rows_efficiency", 1.0),
    "saturation_mb": ("saturation_bytes", MB),
    "split_us": ("split_s", US),
    "split_tokens": ("split_tokens", 1.0),
    "unit_us": ("unit_s", US),
    "query": ("query_efficiency", 1.0),
    "kv": ("kv_efficiency", 1.0),
    "softmax_width": ("softmax_width", 1.0),
    "tile": ("tile", 1.0),
}
"""Key in a device file -> (field of `KernelLaw`, its unit in SI)."""

COLLECTIVE_FIELDS: Mapping[str, tuple[str, float]] = {
    "latency_us": ("latency_s", US),
    "latency_per_rank_us": ("latency_per_rank_s", US),
    "efficiency": ("efficiency", 1.0),
    "saturation_mb": ("saturation_bytes", MB),
    "step_us": ("step_s", US),
    "step_mb": ("step_bytes", MB),
}
"""Key in a device file -> (field of `CollectiveLaw`, its unit in SI)."""

DISPATCH_FIELDS: Mapping[str, tuple[str, float]] = {
    "latency_us": ("latency_s", US),
    "node_latency_us": ("node_latency_s", US),
    "local": ("local_efficiency", 1.0),
    "remote": ("remote_efficiency", 1.0),
    "half_rate_units": ("half_rate_units", 1.0),
}
"""Key in a device file -> (field of `DispatchLaw`, its unit in SI)."""


class StrictModel(BaseModel):
    """Refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class CollectiveNumbers(StrictModel):
    """Constants of a collective at one group size."""

    latency_us: NotNegative = 0.0
    latency_per_rank_us: NotNegative = 0.0
    efficiency: Share = 1.0
    saturation_mb: NotNegative = 0.0
    step_us: NotNegative = 0.0
    step_mb: NotNegative = 0.0

    def numbers(self) -> dict[str, Any]:
        """Keyword arguments of `CollectiveLaw`."""
        return {field: getattr(self, key) * unit for key, (field, unit) in COLLECTIVE_FIELDS.items()}


class CollectiveEntry(CollectiveNumbers):
    """Constants of a kind of collective, possibly by group size."""

    ranks: dict[int, CollectiveNumbers] = {}
    source: str = ""

    def law(self) -> CollectiveLaw:
        """In base units."""
        by_ranks = tuple((size, CollectiveLaw(**self.ranks[size].numbers())) for size in sorted(self.ranks))
        return CollectiveLaw(**self.numbers(), by_ranks=by_ranks, source=self.source)


class KernelEntry(StrictModel):
    """Constants of a kind of kernel; see `KernelLaw` for what each means."""

    compute: Share
    memory: Share
    launch_us: NotNegative
    overlap: Annotated[float, Field(ge=1)] = math.inf
    tile_edge: NotNegative | None = None
    k_latency_ns: NotNegative = 0.0
    quantise: NotNegative = 0.0
    throttle: NotNegative = 0.0
    expert_us: NotNegative = 0.0
    rows: NotNegative = 0.0
    all_rows: NotNegative = 0.0
    saturation_mb: NotNegative = 0.0
    split_us: NotNegative = 0.0
    split_tokens: NotNegative = 0.0
    unit_us: NotNegative = 0.0
    query: NotNegative = 0.0
    kv: NotNegative = 0.0
    softmax_width: NotNegative = 0.0
    tile: NotNegative = 0.0
    source: str = ""

    def law(self) -> KernelLaw:
        """In base units."""
        given = {key: getattr(self, key) for key in KERNEL_FIELDS}
        numbers: dict[str, Any] = {
            KERNEL_FIELDS[k][0]: v * KERNEL_FIELDS[k][1] for k, v in given.items() if v is not None
        }
        return KernelLaw(**numbers, source=self.source)


class DispatchEntry(StrictModel):
    """Constants of one direction of a DeepEP-style all-to-all."""

    latency_us: NotNegative
    node_latency_us: NotNegative = 0.0
    local: Share = 1.0
    remote: Share = 1.0
    half_rate_units: NotNegative = 0.0
    deduplicated: bool = False
    source: str = ""

    def law(self) -> DispatchLaw:
        """In base units."""
        numbers: dict[str, Any] = {f: getattr(self, key) * unit for key, (f, unit) in DISPATCH_FIELDS.items()}
        return DispatchLaw(**numbers, deduplicated=self.deduplicated, source=self.source)


def kernel_laws(kind: str, entries: Mapping[str, KernelEntry | str]) -> dict[str, KernelLaw]:
    """The laws of one kind; an entry that is a word takes the law of that name in the same kind.

    Raises:
        InvalidInputError: for a word that names no entry.
    """
    laws = {name: entry.law() for name, entry in entries.items() if isinstance(entry, KernelEntry)}
    for name, entry in entries.items():
        if isinstance(entry, str):
            if entry not in laws:
                known = ", ".join(laws) or "none"
                raise InvalidInputError(f"kernels.{kind}.{name} names {entry!r}, which is not there: there are {known}")
            laws[name] = laws[entry]
    return laws
