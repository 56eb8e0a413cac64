"""Users' own modules: every usual way of writing experts gives the same fused ops."""

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from autoshard.errors import UnsupportedModelError
from autoshard.ir import ExpertsLinear
from autoshard.sharding.rules.experts import is_stacked
from autoshard.tracing import trace
from autoshard.tracing.fold import find_stacks
from autoshard.tracing.weights import fill_random
from tests.tracing import plain_models as plain

STYLES = [plain.WhereLoop, plain.MaskLoop, plain.DenseLoop, plain.Fused, plain.Einsum, plain.HitLoop, plain.SplitLoop]
STYLES += [plain.Spare, plain.CountLoop, plain.Rows]


@pytest.mark.parametrize("style", STYLES)
def test_every_way_of_writing_experts_is_understood(style):
    model = plain.Plain(style)
    graph = trace(model, name="m")
    assert [b.repeat for b in graph.blocks] == [3]
    assert graph.num_parameters == sum(p.numel() for p in model.parameters())
    held = {p.fqn for *_, p in graph.parameters() if p.shared_with is None}
    assert held == {n for n, _ in model.named_parameters()}
    assert not [op for _, op in graph.all_ops() if op.kind == "opaque"]
    banks = [op for op in graph.blocks[0].ops if isinstance(op, ExpertsLinear)]
    assert {(op.experts.size, op.top_k) for op in banks} == {(plain.EXPERTS, plain.TOP_K)}
    # two experts a token of three matrices 32 x 48, two per multiply-add
    assert sum(op.flops(1) for op in banks) == 2 * 2 * 3 * 32 * 48
    assert banks[-1].stage == "down" and {op.in_dim.size for op in banks if op.stage == "up"} == {32}
    # None is given the experts of its tokens from outside, which is what running on shares of them needs.
    assert banks and not any(is_stacked(op) for op in banks)
    head = graph.epilogue.op("head")
    assert head.params[0].shared_with == "table.weight"


def test_flops_of_a_loop_equal_a_counter():
    model = plain.Plain(plain.WhereLoop).eval()
    fill_random(model, 0)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.randint(0, plain.VOCAB, (2, 16)))
    graph = trace(model, name="m")
    core = sum(b.repeat * op.flops(32, 16) for b, op in graph.all_ops() if op.kind == "attention")
    # the counter does not see attention on the CPU
    assert counter.get_total_flops() == pytest.approx(graph.traced_flops(32, 16) - core, rel=0.01)


def test_wrapping_in_a_sequential_changes_only_names():
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Sequential(plain.Plain(plain.Einsum))

        def forward(self, input_ids):
            return self.inner(input_ids)

    def shape(graph):
        return [
            (b.repeat, op.name, op.kind, op.inputs, op.signature, [p.shape for p in op.params])
            for b, op in graph.all_ops()
        ]

    wrapped = trace(Wrapped(), name="w")
    assert shape(wrapped) == shape(trace(plain.Plain(plain.Einsum), name="m"))
    assert wrapped.blocks[0].instances[0] == "inner.0.layers.0"


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("need_weights", [True, False], ids=["spelled", "fused"])
def test_multihead_attention_is_one_packed_projection_and_a_core(need_weights, batch_first):
    model = plain.PlainMultihead(need_weights=need_weights, batch_first=batch_first)
    graph = trace(model, name="m")
    block = graph.blocks[0]
    assert [op.name for op in block.ops][:5] == ["attn_norm", "qkv", "attention", "o", "attn_add"]
    assert not [op for _, op in graph.all_ops() if op.kind == "opaque"]
    qkv, core = block.op("qkv"), block.op("attention")
    # queries, keys and values of 4 heads x 8 in one matrix; four heads of each are cached
    assert qkv.out_dim.size == 3 * 32 and qkv.params[0].fqn.endswith("attention.in_proj_weight")
    assert (core.heads.size, core.kv_heads.size, core.qk_dim, core.v_dim) == (4, 4, 8, 8)
    assert not core.shared_kv and graph.kv_bytes_per_token("float32") == 2 * 4 * (8 + 8) * 4
    assert graph.num_parameters == sum(p.numel() for p in model.parameters())


def test_layers_that_share_parameters_are_one_line():
    model = plain.Plain(plain.Fused)
    model.layers[1].proj = model.layers[0].proj
    with pytest.raises(UnsupportedModelError, match=r"layers.0.proj.weight and layers.1.proj.weight are one"):
        trace(model, name="m")


class _Half(nn.Module):
    """A layer that a private attribute tells to leave its second half out."""

    def __init__(self, half):
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)
        self._half = half

    def forward(self, x):
        return self.one(x) if self._half else self.two(self.one(x))


class _Chain(plain.Plain):
    """The layers in a ``Sequential``."""

    def __init__(self):
        super().__init__(plain.WhereLoop)
        self.layers = nn.Sequential(*self.layers)


def _chain():
    whole = plain.Plain(plain.WhereLoop)
    return nn.Sequential(whole.table, *whole.layers, whole.norm, whole.head)


class _Attributes(nn.Module):
    """Every layer an attribute of its own."""

    def __init__(self):
        super().__init__()
        whole = plain.Plain(plain.WhereLoop)
        self.table, self.norm, self.head = whole.table, whole.norm, whole.head
        self.l0, self.l1, self.l2 = whole.layers

    def forward(self, ids):
        return self.head(self.norm(self.l2(self.l1(self.l0(self.table(ids))))))


@pytest.mark.parametrize(
    ("make", "layers"),
    [(_Chain, "layers.0 layers.1 layers.2"), (_chain, "1 2 3"), (_Attributes, "l0 l1 l2")],
)
def test_layers_outside_of_lists_are_layers_and_experts_are_not(make, layers):
    graph = trace(make(), name="m")
    assert [b.instances for b in graph.blocks] == [tuple(layers.split())]
    banks = [op for op in graph.blocks[0].ops if isinstance(op, ExpertsLinear)]
    assert {(op.experts.size, op.top_k) for op in banks} == {(plain.EXPERTS, plain.TOP_K)}
    assert not find_stacks(nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4)))  # no layers: an FFN


def test_layers_that_differ_in_a_private_attribute_are_two_kinds():
    layers = [[_Half(half) for half in (False, True, False)]]
    assert [s.kinds for s in find_stacks(nn.Sequential(*map(nn.ModuleList, layers)))] == [(("0.0", "0.2"), ("0.1",))]
