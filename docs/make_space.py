"""Writes docs/space.md: the strategy space of every catalogue model. Run it after changing rules or the catalogue."""

from collections.abc import Iterator
from pathlib import Path

from autoshard import catalogue
from autoshard.api.build_plan import num_strategies
from autoshard.api.describe import legal_choices
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding import RESIDUAL, Degrees, Strategy
from autoshard.sharding.legality import expert_counts
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from autoshard.workload import Workload

CLUSTERS = {"gpt-moe-1.6t": "H100x512"}
TEXT = """# The strategy space of each model

Written by `python docs/make_space.py`; tests compare it with what the code says, a wide one all of it.

A strategy is a degree point (pp, dp, tp, ep, etp, batch) and a choice per fused op, tied over the repeats of a block:
0 shards what the op makes, 1 what it contracts, - replicates it. Points are those of decode at a context of 4,096;
"fit" counts those at which some choices fit in memory. The choices listed are those legal at tp=4, ep=2, etp=2 (tp=4
for a dense model) with the residual sharded (`model/residual`: its hidden dim 0, its
tokens 1, - not at all; `model/dispatch`: tokens go to their experts by all_to_all 0, - are gathered); every linear has
three unless a reason stands beside it. At a degree of 1 all three mean the same and one is left.
"""


def degrees_of(graph: OpGraph) -> Degrees:
    """The degrees at which choices are listed."""
    return Degrees(tp=4, ep=2, etp=2) if expert_counts(graph) else Degrees(tp=4, etp=4)


def section(name: str, graph: OpGraph) -> Iterator[str]:
    """The lines of one model."""
    cluster = parse_cluster(CLUSTERS.get(name, "H100x64"))
    simulator = Simulator(graph, cluster, Workload())
    yield f"## {name}"
    yield ""
    yield (
        f"{cluster.name}: {simulator.num_points_before_memory:,} legal degree points, {len(simulator.points):,} fit,"
        f" {num_strategies(simulator):.2g} strategies."
    )
    yield ""
    yield "| op | kind | legal choices | not offered |"
    yield "|---|---|---|---|"
    strategy = Strategy(degrees=degrees_of(graph), choices=((RESIDUAL, 0),))
    for key, own in legal_choices(graph, strategy).items():
        legal = " ".join("-" if c is None else str(c) for c in sorted(own["legal"], key=lambda c: (c is None, c)))
        reasons = "; ".join(f"{'-' if e['choice'] is None else e['choice']}: {e['reason']}" for e in own["excluded"])
        yield f"| {key} | {own['kind']} | {legal} | {reasons} |"
    yield ""


def page() -> str:
    """The whole page: every model of the catalogue, traced at full size."""
    names = [entry.name for entry in catalogue.entries()]
    return "\n".join([TEXT, *(line for name in names for line in section(name, trace_source(catalogue.find(name))))])


def main() -> None:
    """Write the file."""
    Path(__file__).with_name("space.md").write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
