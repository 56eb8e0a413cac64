import pytest
import torch
from autoshard_models import CATALOGUE
from torch import nn

from autoshard.tracing import ConfigSource, export_graph, resolve, trace, trace_source
from autoshard.tracing.fold import find_stacks, folded

SMALL = {
    **CATALOGUE["qwen3-30b-a3b"].config,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "vocab_size": 128,
}


def _qwen(**changes):
    return ConfigSource(name="q", class_name="Qwen3MoeForCausalLM", config={**SMALL, **changes})


class _Layer(nn.Module):
    def __init__(self, width, idx, scale=1.0):
        super().__init__()
        self.idx = idx
        self.scale = scale
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return self.linear(x) * self.scale


class _Stack(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)


def test_layers_that_differ_only_in_their_number_are_one_kind():
    (stack,) = find_stacks(_Stack([_Layer(4, i) for i in range(5)]))
    assert [len(kind) for kind in stack.kinds] == [5]


def test_shapes_and_scalars_tell_kinds_apart():
    (stack,) = find_stacks(_Stack([_Layer(4, 0), _Layer(8, 1), _Layer(4, 2, scale=0.5), _Layer(4, 3)]))
    assert stack.kinds == (("layers.0", "layers.3"), ("layers.1",), ("layers.2",))


def test_folding_leaves_the_model_as_it_was():
    model = resolve(CATALOGUE["gpt-moe-7b"]).reduced().build("cpu", "float32", seed=0)
    ids = torch.randint(0, 64, (1, 5))
    with torch.no_grad():
        before = model(ids)
        with folded(model):
            pass
        export_graph(model)
        assert torch.equal(model(ids), before)
    assert not any("forward" in vars(m) for m in model.modules())


def test_mixed_dense_and_moe_layers_are_two_blocks():
    graph = trace_source(_qwen(num_hidden_layers=6, mlp_only_layers=[0, 3]))
    assert [b.name for b in graph.blocks] == ["dense_layers", "moe_layers"]
    assert graph.layers == (0, 1, 1, 0, 1, 1)
    assert graph.blocks[0].instances == ("model.layers.0", "model.layers.3")
    assert [op.name for op in graph.blocks[0].ops][-5:] == ["gate", "up", "act", "down", "ffn_add"]
    act = graph.blocks[0].op("act")
    assert (act.fqn, act.num_inputs_wide, act.width.size) == ("model.layers.0.mlp", 2, 96)


def test_nodes_do_not_grow_with_depth():
    shallow, deep = (len(export_graph(_qwen(num_hidden_layers=n).build()).module.graph.nodes) for n in (2, 12))
    # Per further layer one opaque node and its unused parameter inputs (11); a layer itself takes over a hundred.
    assert deep - shallow == 10 * (1 + 11)


@pytest.mark.parametrize("layers", [1, 2])
def test_shallow_models_have_their_layers_too(layers):
    graph = trace_source(_qwen(num_hidden_layers=layers))
    assert graph.layers == (0,) * layers


def test_sliding_window_comes_from_the_mask():
    config = {**SMALL, "num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 24}
    graph = trace_source(ConfigSource(name="w", class_name="Qwen3MoeForCausalLM", config=config))
    assert graph.blocks[0].op("attention").window == 24
    # A token sees 24 of 100 keys: 2 * 24 * 4 heads * (16 + 16).
    assert graph.blocks[0].op("attention").flops(1, 100) == 2 * 24 * 4 * 32


def test_tied_head_is_an_alias():
    config = {**SMALL, "num_hidden_layers": 2, "tie_word_embeddings": True}
    source = ConfigSource(name="t", class_name="Qwen3MoeForCausalLM", config=config)
    graph = trace_source(source)
    (weight,) = graph.epilogue.op("head").params
    assert (weight.fqn, weight.shared_with) == ("lm_head.weight", "model.embed_tokens.weight")
    assert graph.num_parameters == sum(p.numel() for p in source.build().parameters())


def test_biases_belong_to_their_linears():
    graph = trace_source(_qwen(num_hidden_layers=2, attention_bias=True))
    assert [p.role for p in graph.blocks[0].op("q").params] == ["weight", "bias"]
    assert graph.blocks[0].op("o").params[1].fqn == "model.layers.0.self_attn.o_proj.bias"


def test_a_model_on_a_device_traces_like_one_on_meta():
    source = _qwen(num_hidden_layers=2)
    real = source.build("cpu", "float64", seed=0, experts="eager")
    graph = trace(real, name="q")
    assert next(real.parameters()).device.type == "cpu"
    assert [op.name for op in graph.blocks[0].ops] == [op.name for op in trace_source(source).blocks[0].ops]
