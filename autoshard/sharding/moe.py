"""Dispatch and combine: how tokens reach the experts of a stage and how the shares of a token come back.

Tokens live on (dp, tp): a dp rank has its own, replicated (or sharded) over tp. Experts live on (ep, etp). Two ways:

*Gather.* The tokens of all dp ranks, with their routing, reach every rank in one all_gather of packed rows; every rank
runs its own experts on the rows routed to them. Combine sums the shares over ep (and etp, for partial sums) and returns
to each dp rank its tokens, with as few bytes as the nesting of the two views allows.

*Exchange.* The ranks of one ep coordinate, its etp, get the same tokens: a share of a dp rank's, sliced over the part
of tp that is in ep, or, where ep divides dp, those of all its dp ranks, gathered over ``dp_etp``. Their (token, expert)
rows go to the experts in one all_to_all over ep, after one of how many there are, and their results come back in
another; there they are weighted and summed, completed over etp and gathered over the part of tp. At large ep that moves
``top_k / ep`` of the gather's bytes. A slice may be shorter than others, or empty: any number of tokens works.
"""

from dataclasses import dataclass

from autoshard.ir import ExpertsLinear, OpGraph, once_per_graph
from autoshard.sharding.layout import ETP, TP, Layout, P, R, S, Step, StepKind, redistribute
from autoshard.sharding.rules.experts import is_stacked


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePattern:
    """What of the degrees decides *which* steps there are (their sizes only decide the price).

    ``same``: dp = ep = 1, so etp is tp. ``dp_in_ep``: dp divides ep (``ep = dp * tp_ep``), else ep divides dp
    (``dp = ep * dp_etp``). ``whole_experts``: etp = 1. ``exchange``: tokens go to their experts by all_to_all.
    """

    same: bool
    dp_in_ep: bool
    whole_experts: bool
    exchange: bool = False

    @staticmethod
    def of(dp: int, ep: int, etp: int, *, exchange: bool = False) -> "StagePattern":
        """The pattern of given degrees."""
        return StagePattern(
            same=dp == 1 and ep == 1, dp_in_ep=ep % dp == 0, whole_experts=etp == 1, exchange=exchange and ep > 1
        )


@once_per_graph
def can_exchange(graph: OpGraph) -> bool:
    """Whether the model has experts that can be split over ep at all."""
    routed = [op for _, op in graph.all_ops() if isinstance(op, ExpertsLinear)]
    return bool(routed) and all(is_stacked(op) for op in routed)


def exchange_illegal(ep: int) -> str | None:
    """Why tokens cannot be exchanged at a degree; None if they can."""
    return None if ep > 1 else "same as gathered at ep=1"


def dispatch_need(need: Layout, pattern: StagePattern) -> Layout:
    """Layout over tp in which tokens must be delivered to the dispatch of an experts-up that needs ``need`` over etp.

    Only where etp is tp is a hidden-sharded token of any use.
    """
    return S if need is S and pattern.same else R


def dispatch(need: Layout, pattern: StagePattern, op: ExpertsLinear) -> tuple[Step, ...]:
    """Steps from delivered tokens to the rows the experts-up ``op`` reads.

    A gathered row holds the hidden state, ``top_k`` routing weights and ``top_k`` int32 expert numbers. An exchanged
    row is the hidden state alone, of the width that is needed: the weights stay, the counts say whose it is.
    """
    hidden, top_k = op.in_dim.size, op.top_k
    if pattern.exchange:
        cut = (Step(kind="slice", axis="etp", rows="own", width=hidden),) if need is S else ()
        return (
            Step(kind="slice", axis="tp_ep", rows="local", width=hidden, dim="token"),
            Step(
                kind="all_gather",
                axis="dp_etp",
                rows="own",
                width=hidden,
                dim="token",
                statistics=top_k,
                indices=top_k,
            ),
            *cut,
            Step(kind="all_to_all", axis="ep", rows="counts", width=0, indices=op.experts.size),
            Step(kind="all_to_all", axis="ep", rows="sent", width=hidden, split=("etp",) if need is S else ()),
        )
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
    cut = redistribute(R, want, axes=TP, rows="local", width=hidden)
    if pattern.exchange:
        return (*_return(raw, pattern, hidden=hidden), *cut)
    own = Step(kind="reduce_scatter", axis="dp", rows="group", width=hidden, dim="token")
    if raw is P or (pattern.whole_experts and pattern.dp_in_ep):
        return (own, *redistribute(P, want, axes=TP, rows="local", width=hidden))
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


def combine_own(raw: Layout, want: Layout, pattern: StagePattern, *, hidden: int) -> tuple[Step, ...]:
    """`combine` of experts that the model's own code runs: tokens have stayed, so that only shares are summed.

    ``raw`` is over etp; over ep they are shares too. Where dp > 1 all experts are on every rank.
    """
    if pattern.same or not pattern.dp_in_ep:
        return redistribute(raw, want, axes=TP, rows="local", width=hidden)
    if raw is P or pattern.whole_experts:
        return redistribute(P, want, axes=TP, rows="local", width=hidden)
    total = Step(kind="all_reduce", axis="tp_ep", rows="local", width=hidden)
    return (total, *redistribute(R, want, axes=TP, rows="local", width=hidden))


def _return(raw: Layout, pattern: StagePattern, *, hidden: int) -> tuple[Step, ...]:
    """Steps from the results of exchanged rows to a dp rank's tokens, replicated over tp.

    At most one of ``dp_etp`` and ``tp_ep`` is more than one rank: a step over the other does nothing.
    """
    back = Step(kind="all_to_all", axis="ep", rows="arrived", width=hidden, split=("etp",) if raw is S else ())
    everyone = Step(kind="all_gather", axis="tp_ep", rows="local", width=hidden, dim="token")
    if raw is P and not pattern.dp_in_ep:
        mine = Step(kind="reduce_scatter", axis="dp_etp", rows="own", width=hidden, dim="token")
        return (back, mine, Step(kind="all_reduce", axis="tp", rows="local", width=hidden), everyone)
    mine = Step(kind="slice", axis="dp_etp", rows="own", width=hidden, dim="token")
    if raw is R:
        return (back, mine, everyone)
    kind: StepKind = "all_gather" if raw is S else "all_reduce"
    return (back, Step(kind=kind, axis="etp", rows="own", width=hidden), mine, everyone)
