"""What ranks must be seen to do, derived from the graph and the strategy before any rank exists. No torch here."""

from collections import Counter
from dataclasses import dataclass, replace
from typing import Literal

from autoshard.ir import OpGraph
from autoshard.sharding import (
    Degrees,
    Strategy,
    mesh_of,
    num_microbatches,
    stage_collectives,
    stage_placements,
    stages_of,
)
from autoshard.sharding.layout import Axis
from autoshard.units import dtype_bytes


@dataclass(frozen=True, slots=True, order=True)
class Traffic:
    """Collectives of one kind, axis and size in one forward pass, and how many of them.

    ``step`` is 0 for the prompt and n for the n-th decode step; ``axis`` is the name of the mesh axis, or the ranks of
    the group where it is none of the plan's. ``stage`` is the pipeline stage whose ranks run it; what a stage hands
    over is listed where it is sent.
    """

    step: int
    kind: str
    axis: str
    group_size: int
    num_bytes: int
    count: int
    stage: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """Traffic of a prompt and its decode steps, and the bytes of parameters, on every rank of one stage."""

    traffic: tuple[Traffic, ...]
    parameter_bytes: int


def expect(
    graph: OpGraph, strategy: Strategy, *, sequences: int, lengths: tuple[int, ...], dtype: str, stage: int = 0
) -> Expectation:
    """What passes of ``lengths`` tokens (the prompt, then decode steps) of ``sequences`` sequences must send.

    ``sequences`` counts all dp ranks together; ``dtype`` is that of parameters and activations. A parameter that the
    model keeps in a dtype of its own (float32 routers) keeps it, unless all float32 is lifted.
    """
    lifted = {"float32"} if dtype == "float64" else set[str]()
    found: Counter[tuple[int, str, str, int, int]] = Counter()
    here = stages_of(graph, strategy)[stage]
    share = sequences // strategy.degrees.dp
    microbatches = num_microbatches(here.count, share)
    for step, length in enumerate(lengths):
        for c in stage_collectives(
            graph,
            strategy,
            here,
            tokens=share // microbatches * length,
            activation_bytes=dtype_bytes(dtype),
            microbatches=microbatches,
        ):
            found[step, c.kind, c.axis, c.group_size, c.num_bytes] += c.count
    mesh = mesh_of(graph, strategy.degrees)
    placed = (
        replace(p, dtype=dtype if p.dtype in {graph.dtype, *lifted} else p.dtype)
        for p in stage_placements(graph, strategy, here)
    )
    return Expectation(
        traffic=tuple(sorted(Traffic(*key, count, stage) for key, count in found.items())),
        parameter_bytes=sum(p.local_bytes(mesh) for p in placed),
    )


def axis_ranks(graph: OpGraph, degrees: Degrees, axis: Axis | Literal["pp"], rank: int) -> tuple[int, ...]:
    """The ranks of the group of ``axis`` that ``rank`` is in: those that differ in the axis' mesh dims only.

    Of ``"pp"`` it is the pair that a hand-over of ``rank`` is between: itself and its counterpart in the next stage.
    """
    if axis == "pp":
        return (rank, rank + degrees.group)
    stage = mesh_of(graph, degrees)
    strides: dict[str, tuple[int, int]] = {}
    below = 1
    for name, size in reversed(stage.dims):
        strides[name] = (below, size)
        below *= size
    ranks = [rank]
    for name in stage.view(axis):
        stride, size = strides[name]
        ranks = [r - (r // stride % size) * stride + i * stride for r in ranks for i in range(size)]
    return tuple(sorted(set(ranks)))
