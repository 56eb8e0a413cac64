"""Named dimensions and parameters: the nouns in which fused ops are described."""

import math
from dataclasses import dataclass

from autoshard.units import dtype_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Dim:
    """A named tensor dimension.

    ``name`` is the role in the model (``hidden``, ``heads``, ``kv_heads``, ``head_dim``, ``intermediate``,
    ``experts``, ``vocab``); ``size`` the number of elements.
    """

    name: str
    size: int

    def __post_init__(self) -> None:
        assert self.size > 0, f"dimension {self.name} has size {self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadSplit:
    """That the module around an op does the same on 1/n of its heads, for every n that divides ``size``.

    Measured, not read off names: see `autoshard.tracing.head_split`. ``counts`` are the attributes of the module
    (dotted paths) that hold a number of heads or a width, to be divided by n. ``readers`` are set if its forward reads
    a width off its input, which therefore must be 1/n as wide, whatever layout it comes in: they are the linears
    (dotted paths) that read the input, and nothing else computes with it. A module of size 1 cannot be split.
    """

    size: int
    counts: tuple[str, ...] = ()
    readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Param:
    """One parameter tensor of the model.

    ``fqn`` is the name in the first instance of its block (``model.layers.0.mlp.gate.weight``). ``role`` says what it
    is to its fused op: ``weight``, ``bias``, ``correction`` (of a router's scores or weights, one number per expert),
    or ``slice`` (a weight of which the code takes one expert's slice after the other).
    ``shared_with`` names the parameter that owns the storage when this one is an alias of it (tied embeddings); an
    alias adds nothing to the parameter count. ``parts`` are the widths that lie side by side in dim ``split_dim`` of
    a parameter inside a module that can be split by heads: a rank with 1/n of the heads needs the same 1/n of every
    part. Empty if every rank needs it whole.
    """

    fqn: str
    shape: tuple[int, ...]
    dtype: str
    role: str = "weight"
    shared_with: str | None = None
    split_dim: int = 0
    parts: tuple[int, ...] = ()

    @property
    def numel(self) -> int:
        """Number of elements, aliases included."""
        return math.prod(self.shape)

    @property
    def num_bytes(self) -> float:
        """Bytes of the full tensor."""
        return self.numel * dtype_bytes(self.dtype)
