"""Pipeline stages: which layers, parameters and hand-overs a stage has.

Layers stay in model order. Unless a strategy says how many layers each stage gets, L layers over pp stages are
floor(L / pp) or one more each; the longer stages are the last but one and those before it, so that the first and last,
which also embed and make logits, are short (61 layers over 4 stages: 15, 15, 16, 15 -- as vLLM deals them). The first
stage has the prologue, the last the epilogue. Between two stages every rank hands the residual of each microbatch to
its counterpart, in the residual's own layout. Parameters that two stages use (a head tied to the embedding) are held by
both.
"""

from dataclasses import dataclass, replace

from autoshard.ir import Add, Block, OpGraph
from autoshard.sharding.collectives import Collective, collectives
from autoshard.sharding.degrees import partition
from autoshard.sharding.layout import Layout
from autoshard.sharding.placements import ParamPlacement, place_all
from autoshard.sharding.strategy import Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers ``first`` to ``end - 1`` of the model, as stage ``index`` of ``count``."""

    index: int
    count: int
    first: int
    end: int

    @property
    def has_prologue(self) -> bool:
        """Whether it starts from token ids."""
        return self.index == 0

    @property
    def has_epilogue(self) -> bool:
        """Whether it ends with logits."""
        return self.index == self.count - 1


def layers_per_stage(graph: OpGraph, strategy: Strategy) -> tuple[int, ...]:
    """The strategy's own partition, else the even one."""
    return strategy.stages or partition(len(graph.layers), strategy.degrees.pp)


def stages_of(graph: OpGraph, strategy: Strategy) -> tuple[Stage, ...]:
    """Every stage of a strategy, first to last."""
    found: list[Stage] = []
    counts = layers_per_stage(graph, strategy)
    for index, count in enumerate(counts):
        first = found[-1].end if found else 0
        found.append(Stage(index=index, count=len(counts), first=first, end=first + count))
    return tuple(found)


def layer_instances(graph: OpGraph) -> tuple[tuple[Block, int], ...]:
    """Kind of block and number of its repeat, of every layer in model order."""
    seen = [0] * len(graph.blocks)
    found = []
    for kind in graph.layers:
        found.append((graph.blocks[kind], seen[kind]))
        seen[kind] += 1
    return tuple(found)


def stage_instances(graph: OpGraph, stage: Stage) -> tuple[tuple[Block, int], ...]:
    """Blocks that a stage runs, in order: ``(block, number of its repeat)``."""
    head = ((graph.prologue, 0),) if stage.has_prologue else ()
    tail = ((graph.epilogue, 0),) if stage.has_epilogue else ()
    return (*head, *layer_instances(graph)[stage.first : stage.end], *tail)


def stage_placements(graph: OpGraph, strategy: Strategy, stage: Stage) -> tuple[ParamPlacement, ...]:
    """Placements of the parameters a stage holds; what is shared with another stage only is the stage's own copy."""
    own = {(block.name, instance) for block, instance in stage_instances(graph, stage)}
    pairs = zip(graph.parameters(), place_all(graph, strategy), strict=True)
    held = [placed for (block, _, instance, _), placed in pairs if (block.name, instance) in own]
    present = {p.fqn for p in held}
    found = []
    for placed in held:
        owner = placed.shared_with
        if owner is not None and owner not in present:
            placed = replace(placed, shared_with=None)
            present.add(owner)
        found.append(placed)
    return tuple(found)


def stage_collectives(
    graph: OpGraph, strategy: Strategy, stage: Stage, *, tokens: int, activation_bytes: float, microbatches: int = 1
) -> tuple[Collective, ...]:
    """Collectives and hand-over of one stage over ``microbatches`` microbatches of ``tokens`` tokens a dp rank."""
    repeats: dict[str, int] = {}
    for block, _ in stage_instances(graph, stage):
        repeats[block.name] = repeats.get(block.name, 0) + 1
    found = []
    whole = {block.name: block.repeat for block in graph.components()}
    for c in collectives(graph, strategy, tokens=tokens, activation_bytes=activation_bytes):
        name = c.where.partition("/")[0]
        if name in repeats:
            found.append(replace(c, count=c.count // whole[name] * repeats[name] * microbatches))
    sends = handovers(graph, strategy, tokens=tokens, activation_bytes=activation_bytes, microbatches=microbatches)
    return (*found, *sends[stage.index : stage.index + 1])


def handovers(
    graph: OpGraph, strategy: Strategy, *, tokens: int, activation_bytes: float, microbatches: int = 1
) -> tuple[Collective, ...]:
    """What a rank of each stage but the last sends to the next, for microbatches of ``tokens`` tokens on a dp rank."""
    width = residual_width(graph)
    if strategy.residual is Layout.SHARDED:
        width //= strategy.degrees.tp
    return tuple(
        Collective(
            kind="send_recv",
            axis="pp",
            group_size=2,
            num_bytes=round(tokens * width * activation_bytes),
            count=microbatches,
            where=f"stage {stage.index} to {stage.index + 1}",
        )
        for stage in stages_of(graph, strategy)[:-1]
    )


def residual_width(graph: OpGraph) -> int:
    """Features of the residual stream that layers pass on."""
    return next((op.width.size for block in graph.blocks for op in block.ops if isinstance(op, Add)), 1)


def num_microbatches(pp: int, sequences: int) -> int:
    """Microbatches of ``sequences`` sequences of a dp rank: pp, or the largest number below that divides them."""
    return next(m for m in range(min(pp, sequences), 0, -1) if sequences % m == 0)
