"""How modules are split by heads, against what their code says; and modules that only look as if they could be."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoshard.ir import Combine, Linear, Mixer, Norm
from autoshard.tracing.head_bench import Calls
from autoshard.tracing.head_split import NotSplit, find_split


def _ops(graph, block):
    return {op.name: op for op in next(b for b in graph.blocks if b.name == block).ops}


def test_gated_delta_net(family):
    # 2 key and 4 value heads of 8 and 12: q|k|v channels of 16, 16 and 48; in_proj alternates by key head
    ops = _ops(family("qwen3_next"), "moe_layers")
    core = ops["mixer"]
    assert isinstance(core, Mixer) and core.split is not None and core.split.size == 2 and core.whole == ()
    assert set(core.split.counts) == {"num_v_heads", "num_k_heads", "key_dim", "value_dim"}
    assert {p.fqn.rpartition("linear_attn.")[2]: p.parts for p in core.params} == {
        "conv1d.weight": (16, 16, 48),
        "A_log": (4,),
        "dt_bias": (4,),
    }
    assert ops["mixer_in"].parts == () and ops["mixer_in"].packed == 1
    norm, gate = ops["mixer_norm"], ops["combine"]
    assert isinstance(norm, Norm) and norm.within_heads and norm.follows == "mixer"
    assert isinstance(gate, Combine) and gate.follows == "mixer"


def test_mamba_2(family):
    # 8 heads of 16, 2 groups of B and C of 16 each: gate 128 | x 128 | B 32 | C 32 | dt 8; a group is 4 heads
    ops = _ops(family("nemotron_h"), "dense_layers")
    assert ops["mixer_in"].parts == (128, 128, 32, 32, 8)
    core = ops["mixer"]
    assert isinstance(core, Mixer) and core.split is not None and core.split.size == 2
    assert set(core.split.counts) == {"num_heads", "intermediate_size", "n_groups", "conv_dim"}
    assert {p.fqn.rpartition(".")[2]: p.parts for p in core.params}["bias"] == (128, 32, 32)


def test_mamba_1(family):
    # 128 channels each on its own; B, C and dt are read by all of them, dt_proj only lends its parameters
    ops = _ops(family("jamba"), "dense_layers")
    assert isinstance(ops["mixer"], Mixer) and ops["mixer"].split is not None and ops["mixer"].split.size == 128
    assert ops["mixer_in"].packed == 2 and ops["mixer_in_2"].follows is None
    step = ops["mixer_in_3"]
    assert isinstance(step, Linear) and step.follows == "mixer" and [p.parts for p in step.params] == [(128,), (128,)]
    scan = ops["mixer_2"]
    assert isinstance(scan, Mixer) and scan.follows == "mixer" and scan.whole == ("mixer_norm_2", "mixer_norm_3")


class _Module(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.style, self.heads, self.width = style, 4, 32
        self.qkv, self.out = nn.Linear(16, 96), nn.Linear(32, 16)

    def forward(self, x: Tensor) -> Tensor:
        heads = 4 if self.style == "constant" else self.heads
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in self.qkv(x).split(self.width, -1))
        if self.style == "shared":
            k = k.mean(1, keepdim=True).expand_as(q)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        if self.style == "transposed":
            mixed = mixed.transpose(2, 3)
        return self.out(mixed.flatten(2))


class _Model(nn.Module):
    def __init__(self, style: str) -> None:
        super().__init__()
        self.table, self.core = nn.Embedding(8, 16), _Module(style)

    def forward(self, ids: Tensor) -> Tensor:
        return self.core(self.table(ids))


def _found(style):
    with torch.device("meta"):
        model = _Model(style)
    return find_split(Calls(model), "core", frozenset(["qkv"]))


def test_a_plain_module_is_told_its_heads_and_width():
    found = _found("honest")
    assert found.heads.size == 4 and set(found.heads.counts) == {"heads", "width"}
    assert found.entries == {"qkv": (32, 32, 32)}


@pytest.mark.parametrize(
    ("style", "reason"),
    [
        ("constant", "does not work on a share"),  # right shapes, heads of half the size: seen by their numbers only
        ("shared", "heads share part of qkv"),
        ("transposed", "share part|laid out|does not work|every output"),
    ],
)
def test_what_cannot_be_split_is_not(style, reason):
    with pytest.raises(NotSplit, match=reason):
        _found(style)
