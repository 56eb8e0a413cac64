"""What every fused op has."""

from dataclasses import dataclass

from autoshard.ir.dims import Param

BLOCK_INPUT = "input"
"""Name of the tensor that enters a block: the residual stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Op:
    """What every fused op has.

    ``name`` is unique in its block and canonical (it follows from the role, not from module names). ``fqn`` is the
    module that owns the op in the first instance of the block. ``signature`` is einops-like, for people.
    ``follows`` names the op whose sharding choice this one shares (q/k norms follow the attention core).
    """

    name: str
    fqn: str
    inputs: tuple[str, ...]
    params: tuple[Param, ...] = ()
    signature: str = ""
    follows: str | None = None

    @property
    def num_parameters(self) -> int:
        """Elements of all parameters that are not aliases."""
        return sum(p.numel for p in self.params if p.shared_with is None)
