"""Layouts of an activation over one mesh axis, and the steps that change them.

A tensor between two fused ops has rows (tokens) and one feature dim (hidden, heads, intermediate, vocab, experts).
Over the axis its op is sharded on, the tensor is replicated, sharded on the feature dim, or a partial sum; the residual
may also have its tokens split over tp, in equal shares, the last padded. A `Step` is one collective (or a free local
slice) over one axis. Steps are symbolic in the degrees, so that the same list is priced for many strategies at once by
the simulator, written into a plan, and executed by the ranks.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Literal

from autoshard.sharding.padding import PLAIN, Grain, padded_width

Axis = Literal["dp", "tp", "ep", "etp", "tp_ep", "tp_etp", "dp_ep", "dp_etp", "tp_kv", "tp_rep"]
"""A named direction of the mesh of one pipeline stage; ``tp_ep`` is the part of tp that is also in ep, and so on."""

StepKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "slice"]
Rows = Literal["local", "group", "pairs", "own", "sent", "arrived", "counts"]
"""How many rows a step's payload has.

=========== ==========================================================================================================
``local``   tokens of one dp rank
``group``   tokens of all dp ranks
``pairs``   group tokens x experts per token
``own``     tokens that one ep rank exchanges: its share of a dp rank's, or those of all its dp ranks (`own_tokens`)
``sent``    own tokens x experts per token: the rows an ep rank sends to the experts, and gets back from them
``arrived`` the rows that experts get: as many as ``sent`` where all experts are chosen equally often
``counts``  one
=========== ==========================================================================================================
"""


class Layout(StrEnum):
    """Placement of an activation over one axis."""

    REPLICATED = "replicated"
    SHARDED = "sharded"
    PARTIAL = "partial"
    TOKENS = "tokens"


INDEX_BYTES = 4.0
"""Bytes of an expert number, or of a count: int32."""

R, S, P, T = Layout.REPLICATED, Layout.SHARDED, Layout.PARTIAL, Layout.TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One collective over ``axis``, or a local ``slice``.

    The payload is the tensor as nccl-tests counts it: the buffer of an all_reduce, the gathered output of an
    all_gather, the total input of a reduce_scatter. It has ``rows`` rows of ``width`` activation elements plus
    ``statistics`` elements (float32, or float64 when activations are) and ``indices`` int32 elements, divided by the
    sizes of ``split``. ``dim`` is the dim gathered, scattered or sliced: tokens that do not divide are padded.
    ``packed`` parts of the feature dim are handled side by side (gate|up), or the unequal ``parts`` of these widths
    (q|k|v with fewer kv heads). A feature dim that does not divide is filled up in pieces of ``grain``; what is
    gathered or scattered is counted filled up, and cut to its width where it is whole again.

    An ``all_to_all`` has as many parts as the axis has ranks, of unequal sizes. Its payload is what does not depend on
    the data: what a rank sends on the way to the experts (``sent``), what it gets on the way back (``arrived``).
    """

    kind: StepKind
    axis: Axis
    rows: Rows
    width: int
    dim: Literal["feature", "token"] = "feature"
    split: tuple[Axis, ...] = ()
    statistics: int = 0
    indices: int = 0
    packed: int = 1
    parts: tuple[int, ...] = ()
    grain: Grain = PLAIN

    def row_bytes(self, activation_bytes: float, sizes: Mapping[str, Any] | None = None) -> Any:
        """Bytes of one row of the undivided payload, at axis ``sizes`` (whole numbers or arrays) if widths are uneven.

        Counts are one for every expert, those that only fill up a rank's share included.
        """
        statistic_bytes = max(4.0, activation_bytes)
        width: Any = self.width
        statistics: Any = self.statistics
        indices: Any = self.indices
        if sizes is not None:
            gathered = self.dim == "feature" and self.kind in ("all_gather", "reduce_scatter")
            for axis in (*((self.axis,) if gathered else ()), *(a for a in self.split if a != "ep")):
                width = padded_width(width, sizes[axis], packed=self.packed, grain=self.grain)
            if gathered:
                statistics = padded_width(statistics, sizes[self.axis])
            if self.rows == "counts":
                indices = padded_width(indices, sizes[self.axis])
        return width * activation_bytes + statistics * statistic_bytes + indices * INDEX_BYTES


def own_tokens(tokens: Any, sizes: Mapping[str, Any]) -> Any:
    """Tokens that one ep rank exchanges when a dp rank has ``tokens``: an even share, rounded up, of ``tp_ep`` ranks.

    Where ep divides dp instead, the ``dp_etp`` dp ranks that share experts have each other's tokens. Whole numbers, or
    arrays of them.
    """
    return -(-tokens // sizes["tp_ep"]) * sizes["dp_etp"]


def step_rows(step: Step, sizes: Mapping[str, Any], *, tokens: Any, top_k: int) -> Any:
    """Rows of a step's payload when a dp rank has ``tokens`` tokens; whole numbers, or arrays over strategies.

    The tokens that a step gathers, scatters or slices are padded to a multiple of its axis.
    """
    match step.rows:
        case "local":
            rows = tokens
        case "group":
            rows = tokens * sizes["dp"]
        case "pairs":
            rows = tokens * sizes["dp"] * top_k
        case "own":
            rows = own_tokens(tokens, sizes)
        case "sent" | "arrived":
            rows = own_tokens(tokens, sizes) * top_k
        case "counts":
            rows = sizes["ep"] // sizes["ep"]  # one, as an array where the others are
    if step.dim == "token":
        rows = -(-rows // sizes[step.axis]) * sizes[step.axis]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAxes:
    """The axes a tensor's layouts refer to.

    ``shard`` is the axis of a sharded layout; ``rest`` completes it to the axis of a partial layout when the feature
    dim can only be split over a part of it (key/value heads fewer than tp: ``shard`` = tp_kv, ``rest`` = tp_rep).
    """

    shard: Axis
    full: Axis
    rest: Axis | None = None


TP = TensorAxes(shard="tp", full="tp")
KV = TensorAxes(shard="tp_kv", full="tp", rest="tp_rep")
ETP = TensorAxes(shard="etp", full="etp")


def redistribute(
    src: Layout, dst: Layout, *, axes: TensorAxes, rows: Rows, width: int, packed: int = 1, grain: Grain = PLAIN
) -> tuple[Step, ...]:
    """Steps that bring a (rows, width) tensor from ``src`` to ``dst`` over its axes.

    ====================== ===========================================
    partial -> replicated  all_reduce
    partial -> sharded     reduce_scatter (then all_reduce over ``rest``)
    sharded -> replicated  all_gather
    replicated -> sharded  slice, free
    partial -> tokens      reduce_scatter of tokens
    tokens -> replicated   all_gather of tokens
    replicated -> tokens   slice, free
    ====================== ===========================================

    Between tokens and features it goes over the whole tensor. ``dst`` may not be partial unless ``src`` is: nothing is
    ever made partial on purpose.
    """
    if src == dst:
        return ()
    if dst is P:
        raise AssertionError(f"cannot go from {src} to partial")
    if T in (src, dst):
        return _redistribute_tokens(src, dst, axes=axes, rows=rows, width=width, packed=packed, grain=grain)
    if src is P and dst is R:
        return (Step(kind="all_reduce", axis=axes.full, rows=rows, width=width, packed=packed),)
    if src is P:
        scatter = Step(kind="reduce_scatter", axis=axes.shard, rows=rows, width=width, packed=packed, grain=grain)
        if axes.rest is None:
            return (scatter,)
        tail = replace(scatter, kind="all_reduce", axis=axes.rest, split=(axes.shard,))
        return (scatter, tail)
    kind: StepKind = "all_gather" if src is S else "slice"
    return (Step(kind=kind, axis=axes.shard, rows=rows, width=width, packed=packed, grain=grain),)


def _redistribute_tokens(
    src: Layout, dst: Layout, *, axes: TensorAxes, rows: Rows, width: int, packed: int, grain: Grain
) -> tuple[Step, ...]:
    """Steps from or to split tokens."""
    kind: StepKind = "all_gather" if src is T else ("reduce_scatter" if src is P else "slice")
    step = Step(kind=kind, axis=axes.full, rows=rows, width=width, dim="token")
    whole = {"axes": axes, "rows": rows, "width": width, "packed": packed, "grain": grain}
    if src is T:
        return (step, *redistribute(R, dst, **whole))  # type: ignore[arg-type]
    return (step,) if src is P else (*redistribute(src, R, **whole), step)  # type: ignore[arg-type]
