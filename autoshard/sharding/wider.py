"""Parts of the strategy space that are there only if asked for, and what of them is simulated but not run.

``kv-sequence``: an attention core may split its keys and values over their tokens (choice 1: what it contracts), as
Helix parallelism does (Bhatia et al. 2025). Where tp has more ranks than there are kv heads, the ranks that would each
hold a copy (``tp_rep``; all of tp for a latent cache) hold a share of the tokens instead. They gather the queries of
their heads, attend to their own keys, and exchange partial outputs with the logarithm of their sums of exponentials in
one all_to_all, after which every rank has the outputs of its heads, as under choice 0.
"""

from autoshard.errors import InvalidInputError
from autoshard.ir import Attention, FusedOp, LatentAttention, Linear, OpGraph
from autoshard.sharding.option import Choice, Option
from autoshard.sharding.strategy import Strategy

KV_SEQUENCE = "kv-sequence"
WIDER = (KV_SEQUENCE,)
"""All parts that can be asked for."""

SEQUENCE: Choice = 1
"""The choice of an attention core that splits keys and values over their tokens."""


def check_wider(wider: tuple[str, ...], phase: str) -> None:
    """Raise InvalidInputError for a part of the space that is not known, or has no meaning in the phase."""
    for part in wider:
        if part not in WIDER:
            raise InvalidInputError(f"unknown part {part!r} of the wider space: known are {', '.join(WIDER)}")
        if phase != "decode":
            raise InvalidInputError(f"{part} splits the cache that decode attention reads; the phase is {phase!r}")


def has_sequence_option(op: FusedOp) -> bool:
    """Whether an attention core's keys could be split over their tokens: all that a token sees, by position alone."""
    if isinstance(op, LatentAttention):
        return op.selected is None
    return isinstance(op, Attention) and op.pooled is None and op.selected is None


def follows_core(op: FusedOp) -> bool:
    """Whether an op has the choice of an attention core: what follows it, and the matrix that expands its latent."""
    return op.follows is not None or (isinstance(op, Linear) and op.in_dim.name == "kv_rank")


def option_under(op: FusedOp, offered: tuple[Option, ...], choice: Choice) -> Option:
    """The option an op takes under the choice that decides it: its own, or that of what it follows.

    What follows an attention core is by heads where the core's keys are split over their tokens. Replicated where the
    op has no such option.
    """
    by_choice = {option.choice: option for option in offered}
    if choice == SEQUENCE and choice not in by_choice and follows_core(op):
        choice = 0 if 0 in by_choice else None
    return by_choice[choice] if choice in by_choice else by_choice[None]


def wider_parts(graph: OpGraph, strategy: Strategy) -> tuple[str, ...]:
    """The parts of the wider space that a strategy uses."""
    return (KV_SEQUENCE,) if sequence_keys(graph, strategy) else ()


def sequence_keys(graph: OpGraph, strategy: Strategy) -> tuple[str, ...]:
    """The attention cores whose keys are split over their tokens."""
    cores = [f"{b.name}/{op.name}" for b, op in graph.all_ops() if isinstance(op, Attention | LatentAttention)]
    return tuple(key for key in cores if strategy.choice(key) == SEQUENCE)


def check_runs(graph: OpGraph, strategy: Strategy) -> None:
    """Raise InvalidInputError for a strategy that is simulated only."""
    keys = sequence_keys(graph, strategy)
    if keys:
        raise InvalidInputError(
            f"{KV_SEQUENCE}: {keys[0]}=1 splits the KV cache over its tokens, which is simulated only and has no code"
            f" that runs it; plan without --space {KV_SEQUENCE}"
        )
