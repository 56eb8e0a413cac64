"""What exchanged rows a rank must be seen to send and get: from what the unsharded model's routers chose.

A plan lists an all_to_all at the size that does not depend on the data (`autoshard.sharding.layout.Step`). How many
rows arrive at a rank does: they are counted here, pair by pair, from the expert numbers of the unsharded model, so that
the bytes of every rank are checked exactly in both directions. Over a group the sum is tokens x experts a token,
whatever was chosen.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import partial

from autoshard.ir import ExpertsLinear, OpGraph
from autoshard.sharding import (
    Degrees,
    Strategy,
    mesh_of,
    num_microbatches,
    resolve_graph,
    stage_instances,
    stages_of,
)
from autoshard.sharding.collectives import step_bytes
from autoshard.sharding.layout import own_tokens
from autoshard.sharding.legality import axis_sizes
from autoshard.sharding.padding import padded_width
from autoshard.units import dtype_bytes

Routing = Sequence[Mapping[str, Sequence[Sequence[int]]]]
"""Per pass and experts module: the experts of every token of all dp ranks, (tokens, experts a token)."""

Listed = tuple[int, str, str, int]
"""Pass, kind, axis and bytes as the plan lists them."""


def experts_modules(graph: OpGraph) -> tuple[str, ...]:
    """FQNs of all experts modules."""
    return tuple(
        block.fqn(op.fqn, instance)
        for block, op in graph.all_ops()
        if isinstance(op, ExpertsLinear) and op.stage == "up"
        for instance in range(block.repeat)
    )


def rows_of_rank(
    chosen: Sequence[Sequence[int]], num_experts: int, degrees: Degrees, sizes: Mapping[str, int], rank: int
) -> tuple[int, int]:
    """(token, expert) rows that ``rank`` sends to the experts of its group, and that arrive at its own.

    ``chosen`` are the experts of the tokens of all dp ranks in order. An ep rank has an even share of a dp rank's
    tokens (the last may have fewer), or the tokens of ``dp_etp`` dp ranks.
    """
    ep_rank = rank % degrees.group // degrees.etp
    tokens, top_k = len(chosen) // degrees.dp, len(chosen[0])
    share = own_tokens(tokens, sizes)
    have = max(min(share, sizes["dp_etp"] * tokens - ep_rank % sizes["tp_ep"] * share), 0)
    local = padded_width(num_experts, degrees.ep) // degrees.ep
    first = local * ep_rank
    arrived = sum(first <= e < first + local for experts in chosen for e in experts)
    return have * top_k, arrived


def routed_traffic(
    graph: OpGraph,
    strategy: Strategy,
    routing: Routing,
    *,
    sequences: int,
    lengths: tuple[int, ...],
    dtype: str,
    rank: int,
) -> dict[Listed, Counter[tuple[int, int]]]:
    """(bytes sent, bytes received) of every collective of ``rank`` that depends on routing, by how it is listed.

    Sequences of a dp rank go through pipeline stages in microbatches, in order.
    """
    if not strategy.exchange:
        return {}
    degrees, sizes = strategy.degrees, axis_sizes(mesh_of(graph, strategy.degrees))
    stage = stages_of(graph, strategy)[rank // degrees.group]
    found: dict[Listed, Counter[tuple[int, int]]] = {}
    resolved = resolve_graph(graph, strategy)
    share = sequences // degrees.dp
    microbatches = num_microbatches(stage.count, share)
    for number, length in enumerate(lengths):
        tokens = share // microbatches * length
        for block, instance in stage_instances(graph, stage):
            up = next((o for o in block.ops if isinstance(o, ExpertsLinear) and o.stage == "up"), None)
            steps = [s for item in resolved[block.name] for s in item.steps() if s.rows in ("sent", "arrived")]
            for step in steps if up is not None else ():
                if step.kind == "slice" or sizes[step.axis] == 1:
                    continue
                assert up is not None
                size_of = partial(
                    step_bytes, step, sizes, tokens=tokens, top_k=up.top_k, activation_bytes=dtype_bytes(dtype)
                )
                listed = (number, str(step.kind), str(step.axis), size_of())
                chosen = routing[number][block.fqn(up.fqn, instance)]
                for part in range(microbatches):
                    ours = [
                        experts
                        for dp in range(degrees.dp)
                        for experts in chosen[dp * share * length :][part * tokens : (part + 1) * tokens]
                    ]
                    sent, arrived = rows_of_rank(ours, up.experts.size, degrees, sizes, rank)
                    if step.kind != "all_to_all":
                        sent = arrived
                    elif step.rows == "arrived":
                        sent, arrived = arrived, sent
                    found.setdefault(listed, Counter())[size_of(rows=sent), size_of(rows=arrived)] += 1
    return found
