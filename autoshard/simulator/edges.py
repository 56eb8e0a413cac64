"""Which algorithm each collective of a strategy is priced with, and what the others would take.

================ ===================================================================================================
library          NCCL's own choice of ring, tree or NVLS inside a node, as measured: the laws do not tell them apart
hierarchical     NCCL across nodes: in the node, across by parts, in the node again (`autoshard.cost.collectives`)
vllm_graph, ...  an engine's one- and two-shot all_reduce inside a node
low_latency      DeepEP-style kernels that send tokens to their experts, for few tokens
normal           those for many
================ ===================================================================================================

The simulator takes the fastest of those known for every edge; the library alone on a cluster named ``...+library``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import collective_law_s, collective_s
from autoshard.hardware import CollectiveKind
from autoshard.sharding.collectives import resolve_graph
from autoshard.sharding.layout import INDEX_BYTES, Step, own_tokens
from autoshard.sharding.legality import expert_counts
from autoshard.simulator.amounts import Amounts
from autoshard.simulator.exchange import exchange_algorithms
from autoshard.simulator.lengths import own_lengths
from autoshard.simulator.points import Points
from autoshard.simulator.simulator import Simulator
from autoshard.simulator.tables import ENGINE_ALL_REDUCE
from autoshard.simulator.work import ACTIVATION_BYTES

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One collective of one op, ``count`` times a pass: the algorithm taken, and the seconds of one call with each."""

    where: str
    kind: str
    axis: str
    group_size: int
    num_bytes: float
    count: int
    algorithm: str
    seconds: dict[str, float]


def edges(simulator: Simulator, point: int, dims: tuple[int, ...]) -> tuple[Edge, ...]:
    """The collectives of one forward pass of a strategy (of serving: of the decode step), in graph order.

    That of the counts of exchanged tokens is part of the exchange.
    """
    strategy = simulator.strategy(point, dims)
    points = simulator.points.take(np.array([point]))
    resolved = resolve_graph(simulator.graph, strategy)
    found = []
    for block in simulator.graph.components():
        amounts = _amounts(simulator, points, last=block is simulator.graph.epilogue)
        for item in resolved[block.name]:
            for step in item.steps():
                size = int(points.sizes[step.axis][0])
                if step.kind == "slice" or step.rows == "counts" or size == 1:
                    continue
                seconds = {n: float(s[0]) for n, s in _algorithms(simulator, points, amounts, step).items()}
                found.append(
                    Edge(
                        where=f"{block.name}/{item.op.name}",
                        kind=step.kind,
                        axis=step.axis,
                        group_size=size,
                        num_bytes=float(amounts.step_bytes(step, points, ACTIVATION_BYTES)[0]),
                        count=block.repeat,
                        algorithm=min(seconds, key=lambda name: seconds[name]),
                        seconds=seconds,
                    )
                )
    return tuple(found)


def _amounts(simulator: Simulator, points: Points, *, last: bool) -> Amounts:
    lengths = own_lengths(simulator.workload)
    return Amounts.of(
        simulator.graph,
        points,
        tokens_per_sequence=1 if last else lengths.tokens,
        sequences_per_rank=lengths.sequences,
        skew=0.0 if simulator.engine is None else simulator.engine.routing_skew,
    )


def _algorithms(simulator: Simulator, points: Points, amounts: Amounts, step: Step) -> dict[str, FloatArray]:
    """Seconds of one call with each algorithm, the library's first."""
    cluster = simulator.cluster
    num_bytes = amounts.step_bytes(step, points, ACTIVATION_BYTES)
    size, local = points.sizes[step.axis], points.in_node[step.axis]
    if step.rows in ("sent", "arrived"):
        experts = expert_counts(simulator.graph)[0] if step.rows == "sent" else 0
        return exchange_algorithms(
            cluster,
            "dispatch" if step.rows == "sent" else "combine",
            own_tokens(amounts.tokens, points.sizes),
            num_bytes,
            amounts.top_k,
            experts * INDEX_BYTES,
            size,
            local,
        )
    kind: CollectiveKind = step.kind  # type: ignore[assignment]  # slices were left out
    across = bool(local[0] < size[0])
    found = {
        "hierarchical" if across and kind != "all_to_all" else "library": collective_s(
            kind, num_bytes, size, local, cluster.intra, cluster.inter
        )
    }
    engine = ENGINE_ALL_REDUCE if simulator.engine is None else simulator.engine.all_reduce
    law = cluster.intra.engine_laws.get(engine)
    if kind == "all_reduce" and law is not None and not across:
        bus_bytes = 2.0 * num_bytes * (size - 1.0) / size
        found[engine] = collective_law_s(law, cluster.intra.bytes_per_s, bus_bytes, size)
    return found
