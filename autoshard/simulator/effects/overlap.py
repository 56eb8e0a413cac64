r"""A block on one stream of computation and streams of collectives, as ``torch.distributed`` runs it.

Ops run one after another in the model's own order. The moves of a tensor start when it is made (collectives of several
process groups run on several streams; under contention those that cross the same link wait for each other), and the
first op that reads it waits for them. So a move is hidden by the ops that the model runs between the one that makes its
tensor and the first that reads it: the sum over experts by the shared experts, q's gather by k and v. (SGLang does the
first for DeepSeek, pull request 9660.) Nothing is hidden across blocks. With ``M`` the time at which the block is done
and ``S`` the sum of all seconds, ``S - M`` is hidden and :math:`t = S - h (S - M)` (`autoshard.simulator.effects.laws`).
"""

import numpy as np

from autoshard.ir import BLOCK_INPUT, Block
from autoshard.sharding.space import consumers
from autoshard.simulator.effects.block import BlockSeconds, FloatArray
from autoshard.simulator.effects.laws import HIDDEN


def hideable(block: Block) -> frozenset[str]:
    """Tensors whose moves can be hidden: the op that makes them is not followed at once by one that waits for them.

    All others run while no op does and while no other of them does.
    """
    order = {op.name: i for i, op in enumerate(block.ops)}
    found = set()
    for name, made in ((BLOCK_INPUT, -1), *order.items()):
        readers = [order[op.name] for op, _ in consumers(block, name)]
        if min(readers, default=len(block.ops)) > made + 1:
            found.add(name)
    return frozenset(found)


def overlapped_s(block: Block, seconds: BlockSeconds, *, sharing: bool) -> FloatArray:
    """Seconds of a block ``[levels, m]``; ``sharing`` makes collectives on the same link wait for each other."""
    total = seconds.total()
    return total - HIDDEN * (total - _makespan(block, seconds, sharing=sharing))


def _makespan(block: Block, seconds: BlockSeconds, *, sharing: bool) -> FloatArray:
    """When the last op and the last move are done."""
    now = np.zeros((1, next(iter(seconds.compute.values())).shape[-1]))
    near, far = now, now  # when the links inside and between nodes are free again
    ready: dict[str, FloatArray] = {}

    def move(name: str, made: FloatArray) -> FloatArray:
        nonlocal near, far
        moving = seconds.moves.get(name)
        if moving is None:
            return made
        if not sharing:
            return made + moving
        crosses = seconds.moves_far.get(name, np.zeros(1)) > 0
        done = np.where(moving > 0, np.maximum(made, np.where(crosses, far, near)) + moving, made)
        far = np.where(crosses, np.maximum(far, done), far)
        near = np.where(crosses, near, np.maximum(near, done))
        return done

    ready[BLOCK_INPUT] = move(BLOCK_INPUT, now)
    for op in block.ops:
        for name in op.inputs:
            if name in ready:
                now = np.maximum(now, ready[name])
        own = seconds.compute.get(op.name)
        now = now if own is None else now + own
        inside = seconds.inside.get(op.name)
        now = now if inside is None else now + inside
        ready[op.name] = move(op.name, now)
    for done in ready.values():
        now = np.maximum(now, done)
    return now
