"""Fused operators: what one step of the model computes, with named dimensions and closed forms for its work.

A fused op consumes the outputs of other fused ops (``inputs``, by name; ``"input"`` is the residual entering the
block), owns its parameters, and produces exactly one tensor of shape (tokens, feature), known by the op's name.
FLOPs count a multiply-add as two. Work is linear in ``tokens`` except for attention, which adds a term in
tokens x context. What a serving engine executes is meant: top-k experts only, causal attention, absorbed nothing.

Positions in the parameter tensors are part of the contract:

========== ==================================================================================
linear     weight (out, in), bias (out)            -- ``torch.nn.Linear`` order
embedding  weight (vocab, hidden)
router     weight (experts, hidden)
experts_*  weight (experts, out, in), or (experts, in, out) if ``transposed``; bias (experts, out)
norm       weight / bias (width)
========== ==================================================================================
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from autoshard.ir.base import BLOCK_INPUT, Op
from autoshard.ir.dims import Dim, HeadSplit
from autoshard.ir.mixers import Combine, Indexer, LatentAttention, Mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class Embedding(Op):
    """Token look-up, ``t, v h -> t h``."""

    kind: Literal["embedding"] = "embedding"
    vocab: Dim
    hidden: Dim

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """Zero: a gather."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Norm(Op):
    """RMSNorm or LayerNorm over the last dim.

    ``width`` is the feature width of the tensor. ``group`` is the width of one normalised row: equal to ``width`` for
    a norm over the hidden size, ``head_dim`` for per-head q/k norms. ``num_statistics`` is 1 for RMSNorm and 2 for
    LayerNorm; ``centered`` is False for RMSNorm. ``within_heads`` says that its statistics never leave the heads of
    the mixer it follows.
    """

    kind: Literal["norm"] = "norm"
    width: Dim
    group: int
    num_statistics: int = 1
    within_heads: bool = False

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """About four operations per element."""
        return 4.0 * tokens * self.width.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(Op):
    """``t k, n k -> t n``. ``packed`` > 1 means the output is that many equal parts side by side (gate|up, q|k|v).

    ``parts`` are the widths of unequal parts (q|k|v with fewer kv heads), each of which a split by heads divides alike.
    A linear that ``follows`` a mixer is one whose parameters the mixer's module uses itself.
    """

    kind: Literal["linear"] = "linear"
    in_dim: Dim
    out_dim: Dim
    packed: int = 1
    parts: tuple[int, ...] = ()
    is_head: bool = False

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """``2 t k n``."""
        return 2.0 * tokens * self.in_dim.size * self.out_dim.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention(Op):
    """Softmax attention core with rope and the KV cache; inputs are (q, k, v), output (t, heads x v_dim).

    ``window`` limits the context a token sees. ``shared_kv`` says that keys and values are one tensor, cached once.
    Some models add, beyond their own keys, one more key pooled from every ``pooled`` tokens. Where an indexer picks
    keys (the pooled ones, if there are any), a token looks at ``selected`` of them at most. The pooled keys' op, and
    the indexer, are the last inputs.
    A core that reads one fused projection has one input. ``split`` is how its module is split by heads where that was
    looked at; ``unsplit`` says why it cannot be.
    """

    kind: Literal["attention"] = "attention"
    heads: Dim
    kv_heads: Dim
    qk_dim: int
    v_dim: int
    window: int | None = None
    shared_kv: bool = False
    split: HeadSplit | None = None
    unsplit: str = ""
    pooled: int | None = None
    selected: int | None = None

    def seen(self, context: float) -> float:
        """Keys of single tokens that a token looks at out of ``context``."""
        limits = [self.window, self.selected if self.pooled is None else None]
        return min([context, *(float(n) for n in limits if n is not None)])

    def seen_pooled(self, context: float) -> float:
        """Pooled keys a token looks at out of those of ``context`` tokens."""
        keys = 0.0 if self.pooled is None else context / self.pooled
        return keys if self.selected is None else min(keys, float(self.selected))

    def flops(self, tokens: float, context: float = 0.0) -> float:
        """``2 t ctx heads (qk_dim + v_dim)`` with ``ctx`` the mean number of keys a token attends to."""
        seen = self.seen(context) + self.seen_pooled(context)
        return 2.0 * tokens * seen * self.heads.size * (self.qk_dim + self.v_dim)

    @property
    def kv_elements_per_token(self) -> int:
        """Cached elements per token and layer: keys and values of all kv heads, once if they are the same tensor."""
        return self.kv_heads.size * (self.qk_dim if self.shared_kv else self.qk_dim + self.v_dim)

    @property
    def pooled_elements_per_token(self) -> float:
        """Cached elements of pooled keys per token and layer; no window applies to them."""
        return 0.0 if self.pooled is None else self.kv_elements_per_token / self.pooled


@dataclass(frozen=True, slots=True, kw_only=True)
class Router(Op):
    """Scores of every expert and the choice of ``top_k``: ``t h, e h -> t e -> t k``."""

    kind: Literal["router"] = "router"
    hidden: Dim
    experts: Dim
    top_k: int

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """``2 t h e``."""
        return 2.0 * tokens * self.hidden.size * self.experts.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertsLinear(Op):
    """One matrix of every routed expert, on the (token, expert) pairs: ``(t k) i, e o i -> (t k) o``.

    ``stage`` is ``"up"`` (reads the tokens; its inputs are the token tensor and the router) or ``"down"`` (reads the
    activation; its output is the weighted sum over a token's experts). ``packed`` = 2 when gate and up share the
    tensor: side by side, or alternating if ``interleaved``. ``blocks`` are the (out, in) elements that share a scale in
    a quantised checkpoint: a shard holds whole blocks.

    ``form`` says how the model's code runs its experts:

    ========== ========================================================================================================
    routed     one tensor of all experts, in a module that is told which experts every token goes to
    listed     modules of their own, in a list, called one by one by the module around them
    batched    one tensor, multiplied with a batch of rows for every expert, over which the module around it sums
    inside     anything else: slices that a loop takes, products over all experts written out
    ========== ========================================================================================================
    """

    kind: Literal["experts"] = "experts"
    stage: Literal["up", "down"]
    experts: Dim
    in_dim: Dim
    out_dim: Dim
    top_k: int
    packed: int = 1
    interleaved: bool = False
    transposed: bool = False
    blocks: tuple[int, int] = (1, 1)
    form: Literal["routed", "listed", "batched", "inside"] = "routed"

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """``2 t k i o``."""
        return 2.0 * tokens * self.top_k * self.in_dim.size * self.out_dim.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Activation(Op):
    """Pointwise non-linearity between up and down.

    ``width`` is the output width, ``num_inputs_wide`` how many times that width enters (2 for gated). ``top_k`` is
    the number of rows per token (1 for a dense MLP, the experts per token for a routed one).
    """

    kind: Literal["activation"] = "activation"
    width: Dim
    num_inputs_wide: int = 1
    top_k: int = 1
    routed: bool = False

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """About four operations per output element."""
        return 4.0 * tokens * self.top_k * self.width.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Add(Op):
    """Residual addition; inputs are (residual, branch). It follows the plan's residual layout, never has a choice."""

    kind: Literal["add"] = "add"
    width: Dim

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """One per element."""
        return tokens * self.width.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Opaque(Op):
    """Something the tracer does not understand. It runs replicated, with the FLOPs its traced nodes have.

    ``state_bytes`` per sequence and ``cache_bytes_per_token`` are what the model was seen to keep for the block and no
    other op of the block keeps.
    """

    kind: Literal["opaque"] = "opaque"
    width: Dim
    flops_per_token: float = 0.0
    state_bytes: float = 0.0
    cache_bytes_per_token: float = 0.0
    reason: str = ""

    def flops(self, tokens: float, context: float = 0.0) -> float:  # noqa: ARG002
        """As traced."""
        return self.flops_per_token * tokens


FusedOp = Annotated[
    Embedding
    | Norm
    | Linear
    | Attention
    | LatentAttention
    | Indexer
    | Mixer
    | Combine
    | Router
    | ExpertsLinear
    | Activation
    | Add
    | Opaque,
    Field(discriminator="kind"),
]
"""Any fused op; the discriminator is ``kind``."""

__all__ = [
    "BLOCK_INPUT",
    "Activation",
    "Add",
    "Attention",
    "Combine",
    "Embedding",
    "ExpertsLinear",
    "FusedOp",
    "Indexer",
    "LatentAttention",
    "Linear",
    "Mixer",
    "Norm",
    "Opaque",
    "Router",
]
