"""Sequence mixers beyond plain softmax attention, and the glue between their parts.

======================== ===========================================================================================
latent attention (MLA)   keys and values are made from one cached latent per token, ``kv_b`` expands it per head
indexer                  a small attention that picks, for every token, the ``top_k`` keys the large one looks at
mixer                    linear attention, state-space model or short convolution: a state of fixed size per sequence
combine                  combination of tensors token by token: an output gate, the gate of a shared expert
======================== ===========================================================================================
"""

from dataclasses import dataclass
from typing import Literal

from autoshard.ir.base import Op
from autoshard.ir.dims import Dim, HeadSplit


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention(Op):
    """Multi-head latent attention core with rope and the latent cache; output (t, heads x v_dim).

    Inputs are (q, kv_b, kv_a): queries, the latent expanded per head, and the projection that holds the shared rope
    key; an :class:`Indexer` that picks the keys comes fourth. ``latent`` is the rank of the cached latent.
    ``selected`` is the most keys a token looks at (sparse attention), ``window`` how far back it may look.
    """

    kind: Literal["latent_attention"] = "latent_attention"
    heads: Dim
    latent: Dim
    nope_dim: int
    rope_dim: int
    v_dim: int
    selected: int | None = None
    window: int | None = None

    def seen(self, context: float) -> float:
        """Keys a token looks at out of ``context``."""
        limits = [float(n) for n in (self.selected, self.window) if n is not None]
        return min([context, *limits])

    def flops(self, tokens: float, context: float = 0.0) -> float:
        """As engines run it, absorbed: scores and values in the latent, ``2 t ctx heads (2 latent + rope)``.

        Taking queries into the latent and values out of it costs what ``kv_b`` on the new tokens does, and is counted
        there.
        """
        width = 2 * self.latent.size + self.rope_dim
        return 2.0 * tokens * self.seen(context) * self.heads.size * width

    def expanded_flops(self, tokens: float, context: float = 0.0) -> float:
        """As the model's code runs it: ``2 t ctx heads (nope + rope + v)``, over all keys, selected or not."""
        return 2.0 * tokens * context * self.heads.size * (self.nope_dim + self.rope_dim + self.v_dim)

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer: the latent and the rope key, whatever the number of heads."""
        return self.latent.size + self.rope_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexer(Op):
    """Picks ``top_k`` keys a token by a small attention; inputs are (q, k, weights of its heads).

    ``pooled`` says that it picks among keys that stand for so many tokens each.
    """

    kind: Literal["indexer"] = "indexer"
    heads: Dim
    head_dim: int
    top_k: int
    pooled: int = 1

    def flops(self, tokens: float, context: float = 0.0) -> float:
        """``2 t ctx heads (head_dim + 1)``: scores of every head, and their weighted sum."""
        return 2.0 * tokens * context / self.pooled * self.heads.size * (self.head_dim + 1)

    @property
    def kv_elements_per_token(self) -> float:
        """Cached elements per token and layer: one key, shared by the heads."""
        return self.head_dim / self.pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer(Op):
    """The core of a recurrent mixer between its projections: convolution, gates, scan. Output (t, width).

    ``variety`` is ``"recurrent"`` for linear attention and state-space models (their state is a matrix per head or
    channel) and ``"convolution"`` if the state is only the last inputs of a convolution. ``state_bytes`` are kept per
    sequence and layer, ``state_elements`` of them in the recurrence. ``traced_flops_per_token`` is what the traced
    (chunked) formulation spends in contractions. The first mixer of a module that can be split by heads has ``split``,
    the module's other ops follow it; ``unsplit`` says why it cannot be. ``whole`` names the inputs that every rank
    reads whole then.
    """

    kind: Literal["mixer"] = "mixer"
    variety: Literal["recurrent", "convolution"]
    width: Dim
    state_elements: int = 0
    state_bytes: float = 0.0
    convolution_flops_per_token: float = 0.0
    traced_flops_per_token: float = 0.0
    split: HeadSplit | None = None
    unsplit: str = ""
    whole: tuple[str, ...] = ()

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """As a recurrence: decay, update and read-out of the state, about six operations an element a token."""
        return tokens * (6.0 * self.state_elements + self.convolution_flops_per_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class Combine(Op):
    """A function of its inputs that takes every token by itself: ``t width, ... -> t width``.

    Mostly pointwise; ``contraction_flops_per_token`` are those of matrices inside that are none of the known ops.
    ``whole`` is as a mixer's.
    """

    kind: Literal["combine"] = "combine"
    width: Dim
    contraction_flops_per_token: float = 0.0
    whole: tuple[str, ...] = ()

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """About two operations per element and input, and the matrices."""
        return tokens * (2.0 * self.width.size * max(1, len(self.inputs)) + self.contraction_flops_per_token)
