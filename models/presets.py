"""Sizes of the GPT-MoE family, after the paper's model (arXiv 2509.00217).

The paper names a 1.6-trillion-parameter GPT-MoE but publishes none of its sizes, so *every size here is chosen since*:
GPT-3's shape rules (heads of 128, an inner width of 4 hidden), 16 experts of which a token visits 2, grouped-query
attention with 8 kv heads, GPT-2's vocabulary padded to 51,200, no biases in linears.

============= ====== ====== ===== ===================
name          hidden layers heads parameters
============= ====== ====== ===== ===================
gpt-moe-7b      2048     12    16       6,803,656,704
gpt-moe-60b     4096     28    32      61,725,679,616
gpt-moe-350b    8192     40    64     350,482,612,224
gpt-moe-1.6t   12288     80    96   1,573,638,660,096
============= ====== ====== ===== ===================

Per layer, with h = hidden: q and o ``2 h^2``, k and v ``2 h 1024``, router ``16 h``, experts ``16 * 2 * 4 h^2``, two
LayerNorms ``4 h``. Around them: embedding and head ``2 * 51200 h``, the final LayerNorm ``2 h``.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """Keyword arguments of ``GPTMoEConfig`` and the parameter count they give."""

    num_parameters: int
    config: Mapping[str, int]


def _preset(num_parameters: int, hidden: int, layers: int) -> Preset:
    """Sizes by the family's rules from the width and the depth."""
    return Preset(
        num_parameters=num_parameters,
        config=MappingProxyType(
            {
                "hidden_size": hidden,
                "num_hidden_layers": layers,
                "num_attention_heads": hidden // 128,
                "num_key_value_heads": 8,
                "head_dim": 128,
                "intermediate_size": 4 * hidden,
                "num_experts": 16,
                "num_experts_per_tok": 2,
                "vocab_size": 51200,
                "max_position_embeddings": 32768,
            }
        ),
    )


GPT_MOE_PRESETS: Mapping[str, Preset] = MappingProxyType(
    {
        "gpt-moe-7b": _preset(6_803_656_704, 2048, 12),
        "gpt-moe-60b": _preset(61_725_679_616, 4096, 28),
        "gpt-moe-350b": _preset(350_482_612_224, 8192, 40),
        "gpt-moe-1.6t": _preset(1_573_638_660_096, 12288, 80),
    }
)
"""Presets by catalogue name."""
