"""Constants of DeepEP-style dispatch and combine (see `autoshard.cost.dispatch`)."""

from dataclasses import dataclass

from autoshard.errors import InvalidInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchLaw:
    """How an expert-parallel all-to-all of tokens spends its time.

    Attributes:
        latency_s: Floor inside one node.
        node_latency_s: More of it across nodes: once, or per doubling of the nodes if ``deduplicated``.
        local_efficiency: Share of the link inside a node.
        remote_efficiency: Share of the link between nodes.
        half_rate_units: Compute units given to the kernel at which half of the local rate is reached; 0 ignores them.
        deduplicated: A token goes to every node and rank once, whatever number of its experts are there (throughput
            kernels); otherwise one copy for each expert (low-latency kernels).
        source: Where the constants come from.
    """

    latency_s: float
    node_latency_s: float = 0.0
    local_efficiency: float = 1.0
    remote_efficiency: float = 1.0
    half_rate_units: float = 0.0
    deduplicated: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        if min(self.latency_s, self.node_latency_s, self.half_rate_units) < 0:
            raise InvalidInputError(f"latencies and units of a dispatch must not be negative: {self}")
        if not (0 < self.local_efficiency <= 1 and 0 < self.remote_efficiency <= 1):
            raise InvalidInputError(f"efficiencies of a dispatch must lie in (0, 1]: {self}")
