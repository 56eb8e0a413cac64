r"""A block on one stream of computation and streams of collectives, as ``torch.distributed`` runs it.

Ops run one after another in the model's own order. The moves of a tensor start when it is made (collectives of several
process groups run on several streams; under contention those that cross the same link wait for each other), and the
first op that reads it waits for them. So a move is hidden by the ops that the model runs between the one that makes its
tensor and the first that reads it: the sum over experts by the shared experts, q's gather by k and v. (SGLang does the
first for DeepSeek, pull request 9660.) Nothing is hidden across blocks. With ``M`` the time at which the block is done
and ``S`` the sum of all seconds, ``S - M`` is hidden and :math:`t = S - h (S - M)`, ``h`` as in `laws`.

What is hidden of a move ``k`` is at most its own seconds and at most those of everything that may run beside it, ``w``
(`Window`): :math:`S - M \le \sum \min(k, w) \le \sum \mu k + (1 - \mu) w`, which is how the relaxation is made.
"""

from dataclasses import dataclass

import numpy as np

from autoshard.ir import BLOCK_INPUT, Block
from autoshard.sharding.space import consumers
from autoshard.simulator.effects.block import BlockSeconds, FloatArray
from autoshard.simulator.effects.laws import HIDDEN


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What may run beside the moves of a tensor: the ``ops`` before its first reader, and other ``moves``."""

    ops: frozenset[str]
    moves: frozenset[str]


def windows(block: Block) -> dict[str, Window]:
    """Tensors whose moves can be hidden, and behind what.

    All others are read by the very next op: they move while no op runs and none of the others of their kind does.
    """
    order = {op.name: i for i, op in enumerate(block.ops)}
    spans = {}
    for name, made in ((BLOCK_INPUT, -1), *order.items()):
        spans[name] = made, min((order[op.name] for op, _ in consumers(block, name)), default=len(block.ops))
    return {
        name: Window(
            ops=frozenset(op for op, i in order.items() if made < i < read),
            moves=frozenset(n for n, (m, r) in spans.items() if n != name and m < read and made < r),
        )
        for name, (made, read) in spans.items()
        if read > made + 1
    }


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
