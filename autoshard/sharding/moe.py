"""Dispatch and combine: how tokens reach the experts of a stage and how the shares of a token come back.

Tokens live on (dp, tp): a dp rank has its own, replicated (or hidden-sharded) over tp. Experts live on (ep, etp).
Dispatch gathers the tokens of all dp ranks, with their routing, in one all_gather of packed rows; every rank then runs
its own experts on the rows routed to them. Combine sums the shares over ep (and etp, for partial sums) and returns to
each dp rank its tokens, with as few bytes as the nesting of the two views allows.

Neglected: all_to_all dispatch, which moves top_k / ep of these bytes at large ep. It is not in the space yet.
"""

from dataclasses import dataclass

from autoshard.sharding.layout import ETP, TP, Layout, P, R, S, Step, redistribute


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePattern:
    """What of the degrees decides *which* steps there are (their sizes only decide the price).

    ``same``: dp = ep = 1, so etp is tp. ``dp_in_ep``: dp divides ep (``ep = dp * tp_ep``), else ep divides dp
    (``dp = ep * dp_etp``). ``whole_experts``: etp = 1.
    """

    same: bool
    dp_in_ep: bool
    whole_experts: bool

    @staticmethod
    def of(dp: int, ep: int, etp: int) -> "StagePattern":
        """The pattern of given degrees."""
        return StagePattern(same=dp == 1 and ep == 1, dp_in_ep=ep % dp == 0, whole_experts=etp == 1)


def dispatch_need(need: Layout, pattern: StagePattern) -> Layout:
    """Layout over tp in which tokens must be delivered to the dispatch of an experts-up that needs ``need`` over etp.

    Only where etp is tp is a hidden-sharded token of any use.
    """
    return S if need is S and pattern.same else R


def dispatch(need: Layout, pattern: StagePattern, *, hidden: int, top_k: int) -> tuple[Step, ...]:
    """Steps from delivered tokens to the rows an experts-up reads.

    The gathered row holds the hidden state, ``top_k`` routing weights and ``top_k`` int32 expert numbers.
    """
    gather = Step(
        kind="all_gather", axis="dp", rows="group", width=hidden, dim="token", statistics=top_k, indices=top_k
    )
    if need is S and not pattern.same:
        return (gather, Step(kind="slice", axis="etp", rows="group", width=hidden))
    return (gather,)


def combine(raw: Layout, want: Layout, pattern: StagePattern, *, hidden: int) -> tuple[Step, ...]:
    """Steps from the experts' shares (``raw`` over etp, partial over ep) to the residual layout ``want`` over tp."""
    if pattern.same:
        return redistribute(raw, want, axes=TP, rows="local", width=hidden)
    own = Step(kind="reduce_scatter", axis="dp", rows="group", width=hidden, dim="token")
    if raw is P or (pattern.whole_experts and pattern.dp_in_ep):
        return (own, *redistribute(P, want, axes=TP, rows="local", width=hidden))
    cut = redistribute(R, want, axes=TP, rows="local", width=hidden)
    if pattern.dp_in_ep:
        if raw is R:
            total = Step(kind="all_reduce", axis="tp_ep", rows="local", width=hidden)
            return (own, total, *cut)
        return (
            Step(kind="reduce_scatter", axis="dp", rows="group", width=hidden, dim="token", split=("etp",)),
            Step(kind="all_reduce", axis="tp_ep", rows="local", width=hidden, split=("etp",)),
            Step(kind="all_gather", axis="etp", rows="local", width=hidden),
            *cut,
        )
    mine = Step(kind="slice", axis="dp_etp", rows="group", width=hidden, dim="token", split=("ep",))
    if raw is R:
        own_ep = Step(kind="reduce_scatter", axis="ep", rows="group", width=hidden, dim="token")
        return (own_ep, mine, *cut)
    return (
        Step(kind="reduce_scatter", axis="ep", rows="group", width=hidden, dim="token", split=("etp",)),
        Step(kind="all_gather", axis=ETP.shard, rows="group", width=hidden, split=("ep",)),
        mine,
        *cut,
    )
