"""What choices mean for one tensor: the layouts it is made in and needed in, and the steps between them.

Many choices mean the same there (a matrix split by its outputs and a replicated one both need their input whole), so
prices are worked out per combination of layouts, not per combination of choices.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.errors import UnsupportedModelError
from autoshard.ir import Add, Block, FusedOp, Linear, Norm, OpGraph
from autoshard.sharding.flow import block_residual, tensor_moves
from autoshard.sharding.layout import Layout, R, Step
from autoshard.sharding.legality import choice_key, residual_needed
from autoshard.sharding.moe import StagePattern
from autoshard.sharding.option import Option
from autoshard.sharding.space import options
from autoshard.sharding.strategy import DISPATCH, RESIDUAL, RESIDUAL_LAYOUTS
from autoshard.sharding.wider import option_under
from autoshard.simulator.variables import Variable


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """Layouts at a tensor's ends: as made, as each reader needs it, and as it leaves the block (None if it stays)."""

    raw: Layout
    needs: tuple[Layout, ...]
    final: Layout | None
    exchange: bool


class TensorMoves:
    """The moves of what ``producer`` makes (None: the block's input) for ``readers`` (op, input position)."""

    def __init__(
        self,
        graph: OpGraph,
        block: Block,
        producer: FusedOp | None,
        readers: Sequence[tuple[FusedOp, int]],
        variables: Sequence[Variable],
        wider: Sequence[str] = (),
    ) -> None:
        self._graph, self._block, self._producer, self._readers = graph, block, producer, readers
        index = {v.key: i for i, v in enumerate(variables)}
        self._residual, self._dispatch = index[RESIDUAL], index.get(DISPATCH)
        self._choices = [v.choices for v in variables]
        self._ops = [producer, *(op for op, _ in readers)]
        self._by: list[int | None] = [
            self._residual if op is None or isinstance(op, Add) else index.get(choice_key(graph, block, op))
            for op in self._ops
        ]
        self._offered = [() if op is None else options(block, op, wider) for op in self._ops]

    @property
    def ops(self) -> tuple[FusedOp, ...]:
        """Producer and readers."""
        return tuple(op for op in self._ops if op is not None)

    @property
    def decided_by(self) -> set[int]:
        """Variables that decide a layout of it."""
        return {v for v in self._by if v is not None}

    def classes(self, v: int) -> tuple[int, ...]:
        """The class of every option of a variable: one for those that mean the same for this tensor."""
        if v in (self._residual, self._dispatch):
            return tuple(range(len(self._choices[v])))
        numbers: dict[tuple[object, ...], int] = {}
        return tuple(numbers.setdefault(self._meaning(v, o), len(numbers)) for o in range(len(self._choices[v])))

    def _meaning(self, v: int, option: int) -> tuple[object, ...]:
        found: list[object] = []
        for end, (op, by) in enumerate(zip(self._ops, self._by, strict=True)):
            if by == v and op is not None:
                chosen = self._option(end, {v: option})
                found.append(chosen.yields if end == 0 else chosen.needs[self._readers[end - 1][1]])
                found.append(residual_needed(op, chosen) if isinstance(op, Norm) else None)
        return tuple(found)

    def _option(self, end: int, chosen: Mapping[int, int]) -> Option:
        v = self._by[end]
        choice = None if v is None else self._choices[v][chosen[v]]
        op = self._ops[end]
        assert op is not None, "the block's input has no option"
        return option_under(op, self._offered[end], choice)

    def ends(self, chosen: Mapping[int, int]) -> Ends | None:
        """The layouts under the options chosen of the variables that matter; None where they exclude each other."""
        at = self._residual
        everywhere = RESIDUAL_LAYOUTS[self._choices[at][chosen[at]] if at in chosen else None]
        residual = block_residual(self._graph, self._block, everywhere)
        layouts: list[Layout] = []
        for end, op in enumerate(self._ops):
            if op is None or isinstance(op, Add):
                layouts.append(residual)
                continue
            option = self._option(end, chosen)
            if at in chosen and isinstance(op, Norm) and residual_needed(op, option) not in (None, everywhere):
                return None
            layouts.append(option.yields if end == 0 else option.needs[self._readers[end - 1][1]])
        leaves = R if is_head(self._producer) else residual
        by = self._dispatch
        exchange = by is not None and by in chosen and self._choices[by][chosen[by]] == 0
        return Ends(
            raw=layouts[0], needs=tuple(layouts[1:]), final=None if self._readers else leaves, exchange=exchange
        )

    def steps(self, ends: Ends, pattern: StagePattern) -> tuple[Step, ...] | None:
        """The steps between the ends; None where no rule allows them."""
        needs = [(op, i, need) for (op, i), need in zip(self._readers, ends.needs, strict=True)]
        pattern = replace(pattern, exchange=ends.exchange)
        try:
            moves = tensor_moves(
                self._block, self._producer, ends.raw, needs, final=ends.final, pattern=pattern
            )  # fmt: skip
        except UnsupportedModelError:
            return None
        return (*moves.exit, *(s for entry in moves.entry for s in entry))


def is_head(producer: FusedOp | None) -> bool:
    """Whether a tensor is the logits."""
    return isinstance(producer, Linear) and producer.is_head
