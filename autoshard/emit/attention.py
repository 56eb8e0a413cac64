"""The attention core on its heads: the module that owns it is told how many heads there are here.

q, k and v arrive with local heads and are viewed as ``(..., -1, head_dim)``; what a module keeps as a number is put
right. The KV cache then holds this rank's kv heads only, without further ado.
"""

from torch import nn

from autoshard.emit.steps import Axes
from autoshard.ir import Attention
from autoshard.sharding import ResolvedOp
from autoshard.sharding.padding import padded_width

_QUERY_COUNTS = ("num_heads", "num_attention_heads")
_KV_COUNTS = ("num_key_value_heads", "num_kv_heads")
_GROUPS = "num_key_value_groups"


def emit_attention(module: nn.Module, item: ResolvedOp, axes: Axes) -> None:
    """Tell ``module`` its local head counts: heads / tp, and kv heads / tp_kv (fewer kv heads than tp are copied)."""
    op, option = item.op, item.option
    assert isinstance(op, Attention) and option is not None
    assert not any(item.entry) and not item.exit, f"{op.fqn}: a step inside the attention core"
    if option.choice is None:
        return
    group = op.heads.size // op.kv_heads.size
    heads = padded_width(op.heads.size, axes["tp"].size, grain=(group, 1)) // axes["tp"].size
    kv_heads = padded_width(op.kv_heads.size, axes["tp_kv"].size) // axes["tp_kv"].size
    for names, whole, local in ((_QUERY_COUNTS, op.heads.size, heads), (_KV_COUNTS, op.kv_heads.size, kv_heads)):
        for name in names:
            if getattr(module, name, None) == whole:
                setattr(module, name, local)
    if hasattr(module, _GROUPS):
        setattr(module, _GROUPS, heads // kv_heads)
