"""What an op is follows from what it computes: names do not matter, and what is not understood is still counted."""

import pytest
import torch
import torch.nn.functional as F
from autoshard_models import CATALOGUE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autoshard.errors import UnsupportedModelError
from autoshard.ir import Opaque
from autoshard.tracing import resolve, trace, trace_model

NAMES = ["embed", "layers", "attn_norm", "attn", "q_proj", "k_proj", "v_proj", "o_proj", "ffn_norm", "moe", "router"]
NAMES += ["gate", "experts", "up_proj", "down_proj", "act", "norm", "lm_head", "rotary"]


def _rename(model, mapping):
    """Every submodule and parameter under another name; the forwards, which use the old names, still find them."""

    def look_up(self, name):
        return nn.Module.__getattr__(self, mapping.get(name, name))

    for module in list(model.modules()):
        for table in (module._modules, module._parameters):
            for name in list(table):
                if name in mapping:
                    table[mapping[name]] = table.pop(name)
        if type(module).__module__.startswith("autoshard_models"):
            module.__class__ = type("M", (type(module),), {"__getattr__": look_up})
    return model


def _shape(graph):
    """A graph without the names modules and parameters have."""
    return [
        (b.name, b.repeat, op.name, op.kind, op.inputs, op.signature, [(p.shape, p.role) for p in op.params])
        for b, op in graph.all_ops()
    ]


@settings(max_examples=4)
@given(st.permutations(NAMES))
def test_names_of_modules_do_not_matter(shuffled):
    source = resolve(CATALOGUE["gpt-moe-7b"]).reduced()
    mapping = {old: f"{new}x" for old, new in zip(NAMES, shuffled, strict=True)}
    renamed = trace(_rename(source.build(), mapping), name="m")
    assert _shape(renamed) == _shape(trace(source.build(), name="m"))
    assert renamed.blocks[0].op("q").fqn == f"{mapping['layers']}.0.{mapping['attn']}.{mapping['q_proj']}"


class _Block(nn.Module):
    """A block in another formulation: functional attention with a rolled-up mask, SwiGLU by one packed projection."""

    def __init__(self, width, interleaved):
        super().__init__()
        self.interleaved = interleaved
        self.scale_a, self.scale_b = nn.Parameter(torch.ones(width)), nn.Parameter(torch.ones(width))
        self.a, self.b, self.c, self.d = (nn.Linear(width, width) for _ in range(4))
        self.wide, self.narrow = nn.Linear(width, 6 * width, bias=False), nn.Linear(3 * width, width)
        self.strange = nn.Parameter(torch.ones(width))

    def _rms(self, x, scale):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * scale

    def forward(self, x):
        y = self._rms(x, self.scale_a)
        q, k, v = (m(y).unflatten(-1, (4, -1)).transpose(1, 2) for m in (self.b, self.c, self.a))
        x = self.d(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)) + x
        z = self.wide(self._rms(x, self.scale_b))
        gate, up = (z[..., ::2], z[..., 1::2]) if self.interleaved else z.chunk(2, -1)
        return x + self.narrow(F.silu(gate) * up) * self.strange.sin()


class _Model(nn.Module):
    def __init__(self, interleaved=False):
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.blocks = nn.ModuleList(_Block(32, interleaved) for _ in range(3))
        self.out = nn.Linear(32, 50)
        self.unused = nn.Parameter(torch.ones(7))

    def forward(self, input_ids):
        x = self.table(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.out(x)


@pytest.mark.parametrize("interleaved", [False, True])
def test_another_formulation_is_understood_too(interleaved):
    model = _Model(interleaved).eval()
    traced = trace_model(model, name="m")
    block = traced.graph.blocks[0]
    names = [op.name for op in block.ops if not isinstance(op, Opaque)]
    expected = ["attn_norm", "q", "k", "v", "attention", "o", "attn_add", "ffn_norm", "up", "act", "down", "ffn_add"]
    assert names == expected
    assert block.op("q").fqn == "blocks.0.b"
    assert block.op("attn_add").inputs == ("input", "o")
    assert block.op("up").packed == 2
    assert block.op("act").num_inputs_wide == 2
    assert block.op("up").out_dim.size == 192


def test_what_is_not_understood_is_opaque_and_counted():
    model = _Model().eval()
    graph = trace(model, name="m")
    opaque = {p.fqn for _, op, _, p in graph.parameters() if isinstance(op, Opaque)}
    assert opaque == {"unused", *(f"blocks.{i}.strange" for i in range(3))}
    assert all(op.reason for _, op in graph.all_ops() if isinstance(op, Opaque))
    assert graph.num_parameters == sum(p.numel() for p in model.parameters())


def test_every_parameter_and_anchor_node_is_placed():
    traced = trace_model(resolve(CATALOGUE["gpt-moe-7b"]).build(), name="g")
    assert traced.placed["p_model_layers_0_attn_q_proj_weight"] == ("layers", "q")
    assert ("layers", "experts_up") in traced.placed.values()
    graph_nodes = {n.name for n in traced.exported.module.graph.nodes}
    assert set(traced.placed) <= graph_nodes


class _DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, input_ids):
        return self.linear(input_ids[input_ids > 3].float().reshape(-1, 4))


def test_what_cannot_be_traced_is_said_in_one_line():
    with pytest.raises(UnsupportedModelError) as caught:
        trace(_DataDependent(), name="d")
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith("_DataDependent cannot be traced")


def test_flops_equal_a_counter_on_a_run_with_eager_experts_and_attention():
    from torch.utils.flop_counter import FlopCounterMode

    source = resolve(CATALOGUE["mixtral-8x7b"]).reduced()
    model = source.build("cpu", "float32", seed=0, experts="eager")
    model.set_attn_implementation("eager")
    ids = torch.randint(0, 64, (2, 16))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(ids, use_cache=False)
    graph = trace(model, name="m")
    # Eager attention multiplies all 16 keys of a sequence for each of the 32 tokens; pointwise work is not counted.
    matrices = sum(
        b.repeat * op.flops(32, 16)
        for b, op in graph.all_ops()
        if op.kind in ("linear", "experts", "router", "attention")
    )
    assert counter.get_total_flops() == pytest.approx(matrices, rel=0.01)
