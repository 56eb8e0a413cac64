"""How much there is to do at each degree point: tokens, pairs, sequences -- arrays over points."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autoshard.cost import choice_shares, imbalance
from autoshard.ir import ExpertsLinear, OpGraph
from autoshard.sharding.layout import Step, step_rows
from autoshard.sharding.padding import padded_width
from autoshard.simulator.points import Points

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Amounts:
    """Work of one microbatch of one stage, per point.

    ``tokens`` of one dp rank, ``sequences`` of one dp rank, ``group_tokens`` of all dp ranks, ``pairs`` (token, expert)
    that the most loaded ep rank computes, ``top_k`` experts a token, ``skew`` of the popularity of experts
    (`autoshard.cost.moe`).
    """

    tokens: FloatArray
    sequences: FloatArray
    group_tokens: FloatArray
    pairs: FloatArray
    top_k: int
    skew: float = 0.0

    @staticmethod
    def of(
        graph: OpGraph,
        points: Points,
        *,
        tokens_per_sequence: float,
        sequences_per_rank: float | None = None,
        skew: float = 0.0,
    ) -> "Amounts":
        """Amounts when each sequence brings ``tokens_per_sequence`` tokens (1 for logits of the last token only).

        A dp rank has ``sequences_per_rank`` of them, or as many as the point says.
        """
        sequences = points.sequences.astype(np.float64)
        if sequences_per_rank is not None:
            sequences = np.full(len(points), sequences_per_rank)
        tokens = sequences * tokens_per_sequence
        group = tokens * points.dp
        routed = [op for _, op in graph.all_ops() if isinstance(op, ExpertsLinear)]
        if not routed:
            return Amounts(tokens=tokens, sequences=sequences, group_tokens=group, pairs=group, top_k=1)
        op = routed[0]
        mean = group * op.top_k / points.ep
        shares = choice_shares(op.experts.size, op.top_k, skew)
        worst = imbalance(group, op.experts.size, op.top_k, points.ep, shares)
        # Where experts do not divide, the fullest rank has more than its share of them.
        filled = padded_width(op.experts.size, points.ep) / op.experts.size
        return Amounts(
            tokens=tokens,
            sequences=sequences,
            group_tokens=group,
            pairs=mean * worst * filled,
            top_k=op.top_k,
            skew=skew,
        )

    def step_bytes(self, step: Step, points: Points, activation_bytes: float) -> FloatArray:
        """Payload bytes of a step at every point."""
        rows: FloatArray = step_rows(step, points.sizes, tokens=self.tokens, top_k=self.top_k)
        total: FloatArray = rows * step.row_bytes(activation_bytes, points.sizes)
        for axis in step.split:
            total = total / points.sizes[axis]
        return total
