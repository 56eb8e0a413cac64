r"""Two-batch overlap: a layer with routed experts runs both halves of a microbatch, half a step apart.

A half passes through four phases: ``a`` everything outside the experts, ``d`` the moves of what enters them, ``m`` the
experts, ``c`` the moves of what leaves them. One half computes while the other's tokens travel, so a layer of both is

.. math:: T = t(a, c) + t(a, d) + t(m, d) + t(m, c)

with :math:`t` of `autoshard.simulator.effects.laws` and each phase at half the sequences (rounded up): experts and
projections read their weights twice, which is the price. It is the schedule of DeepSeek's prefill (profile-data, 2025)
and SGLang's ``--enable-two-batch-overlap``; as there, layers without routed experts, embedding and head run the whole
microbatch at once, and it is switched on for a whole server, so that a step takes the faster of both modes.
"""

from collections.abc import Callable
from dataclasses import dataclass

from autoshard.ir import BLOCK_INPUT, Block
from autoshard.sharding.space import consumers
from autoshard.simulator.effects.block import BlockSeconds, FloatArray, is_routed, sum_of
from autoshard.simulator.effects.laws import beside_s, sharing_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """Names of ops in the phases a and m, and of the tensors whose moves belong to each phase."""

    outside: frozenset[str]
    experts: frozenset[str]
    moves_outside: frozenset[str]
    moves_entering: frozenset[str]
    moves_inside: frozenset[str]
    moves_leaving: frozenset[str]


def phases(block: Block) -> Phases:
    """The phases of a block with routed experts."""
    routed = frozenset(op.name for op in block.ops if is_routed(op))
    tensors: dict[str, set[str]] = {"outside": set(), "entering": set(), "inside": set(), "leaving": set()}
    for name in (BLOCK_INPUT, *(op.name for op in block.ops)):
        readers = {op.name for op, _ in consumers(block, name)}
        if name in routed:
            phase = "inside" if readers and readers <= routed else "leaving"
        else:
            phase = "entering" if readers & routed else "outside"
        tensors[phase].add(name)
    return Phases(
        outside=frozenset(op.name for op in block.ops) - routed,
        experts=routed,
        moves_outside=frozenset(tensors["outside"]),
        moves_entering=frozenset(tensors["entering"]),
        moves_inside=frozenset(tensors["inside"]),
        moves_leaving=frozenset(tensors["leaving"]),
    )


@dataclass(frozen=True, slots=True)
class _Phase:
    """Seconds of a phase, and of its collectives inside and between nodes."""

    seconds: FloatArray
    near: FloatArray
    far: FloatArray


def two_batch_s(block: Block, half: BlockSeconds, *, sharing: bool) -> FloatArray:
    """Seconds of a layer of both halves ``[levels, m]`` from those of one half; ``sharing``: links take turns."""
    p = phases(block)
    like = next(iter(half.compute.values()))

    def phase(ops: frozenset[str], moves: frozenset[str]) -> _Phase:
        def of(chosen: Callable[[], list[FloatArray]]) -> FloatArray:
            return sum_of(chosen(), like)

        own = of(lambda: [s for n, s in half.compute.items() if n in ops])
        collectives = of(
            lambda: [s for n, s in half.inside.items() if n in ops] + [s for n, s in half.moves.items() if n in moves]
        )
        far = of(
            lambda: (
                [s for n, s in half.inside_far.items() if n in ops]
                + [s for n, s in half.moves_far.items() if n in moves]
            )
        )
        return _Phase(own + collectives, collectives - far, far)

    a, m = phase(p.outside, p.moves_outside), phase(p.experts, p.moves_inside)
    d, c = phase(frozenset(), p.moves_entering), phase(frozenset(), p.moves_leaving)

    def slot(work: _Phase, moving: _Phase) -> FloatArray:
        found = beside_s(work.seconds, moving.seconds)
        return sharing_s(found, [(work.near, moving.near), (work.far, moving.far)]) if sharing else found

    return slot(a, c) + slot(a, d) + slot(m, d) + slot(m, c)
