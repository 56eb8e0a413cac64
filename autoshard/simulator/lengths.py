"""What the sequences of one forward pass bring and see.

A serving workload has two passes: the decode step of all sequences in flight, at the mean length of their caches, and
a *chunk* of prompts. An engine cuts prompts into chunks of ``chunk_tokens``, or puts several short ones into one; a
chunk is priced as if full, and a prompt costs its share of one. The caches must hold every sequence at its full length.
"""

from dataclasses import dataclass
from typing import Literal

from autoshard.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """One pass: ``tokens`` of a sequence enter, each of them sees ``context`` keys on average.

    ``cached`` tokens of a sequence are held in memory. ``sequences`` of a dp rank are in the pass, if not those of the
    degree point.
    """

    phase: Literal["decode", "prefill"]
    tokens: float
    context: float
    cached: int
    sequences: float | None = None

    @property
    def prompt(self) -> float:
        """Tokens of a whole prompt: under the causal mask a token sees half of it."""
        return 2.0 * self.context


def own_lengths(workload: Workload) -> Lengths:
    """The pass of a workload of one phase, or the decode step of a serving workload."""
    if workload.phase == "prefill":
        tokens = workload.tokens_per_sequence
        return Lengths(phase="prefill", tokens=tokens, context=workload.mean_context, cached=tokens)
    return Lengths(
        phase="decode", tokens=1.0, context=workload.mean_context, cached=workload.cached_tokens_per_sequence
    )


def chunk_lengths(workload: Workload, chunk_tokens: int) -> Lengths:
    """A full chunk of the prompts of a serving workload: part of one, or several."""
    isl = workload.prompt_tokens
    tokens = min(isl, chunk_tokens)
    return Lengths(
        phase="prefill", tokens=tokens, context=isl / 2, cached=workload.cached_tokens_per_sequence,
        sequences=chunk_tokens / tokens,
    )  # fmt: skip
