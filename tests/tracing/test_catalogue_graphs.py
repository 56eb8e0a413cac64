import pytest
from autoshard_models import CATALOGUE
from autoshard_models.published import ACTIVE_BILLIONS

from autoshard.ir import Attention, ExpertsLinear, Linear, Norm, Router
from autoshard.tracing import resolve

CORE = [
    n
    for n in sorted(CATALOGUE)
    if n.startswith(("mixtral", "qwen3-30b", "qwen3-235b", "qwen3-coder", "olmoe", "llama-3", "gpt-moe"))
]
WIDE = [n for n in sorted(CATALOGUE) if n not in CORE]
MOE_FFN = ["ffn_norm", "router", "experts_up", "experts_act", "experts_down", "ffn_add"]
ATTENTION = ["attn_norm", "q", "k", "v", "attention", "o", "attn_add"]
NORMED_ATTENTION = ["attn_norm", "q", "k", "v", "q_norm", "k_norm", "attention", "o", "attn_add"]
LAYERS = {
    "mixtral-8x7b": ATTENTION + MOE_FFN,
    "qwen3-30b-a3b": NORMED_ATTENTION + MOE_FFN,
    "olmoe-1b-7b": NORMED_ATTENTION + MOE_FFN,
    "llama-3.1-70b": [*ATTENTION, "ffn_norm", "gate", "up", "act", "down", "ffn_add"],
    "gpt-moe-7b": ATTENTION + MOE_FFN,
}
EDGES = {
    "attn_norm": ("input",),
    "q": ("attn_norm",),
    "k": ("attn_norm",),
    "v": ("attn_norm",),
    "q_norm": ("q",),
    "k_norm": ("k",),
    "attention": ("q", "k", "v"),
    "o": ("attention",),
    "attn_add": ("input", "o"),
    "ffn_norm": ("attn_add",),
    "router": ("ffn_norm",),
    "experts_up": ("ffn_norm", "router"),
    "experts_act": ("experts_up",),
    "experts_down": ("experts_act",),
    "gate": ("ffn_norm",),
    "up": ("ffn_norm",),
    "act": ("gate", "up"),
    "down": ("act",),
}


def _op(graph, name):
    return graph.blocks[0].op(name)


@pytest.mark.parametrize("name", [*CORE, *(pytest.param(n, marks=pytest.mark.wide) for n in WIDE)])
def test_parameters_equal_the_published_count_and_the_modules(name, traced):
    entry, graph = CATALOGUE[name], traced(name)
    model = resolve(entry).build()
    assert sum(p.numel() for p in model.parameters()) == entry.num_parameters
    assert graph.num_parameters == entry.num_parameters
    held = {p.fqn: p.shape for *_, p in graph.parameters()}
    assert held == {n: tuple(p.shape) for n, p in model.named_parameters()}


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_ops_and_edges_are_the_canonical_ones(name, traced):
    graph = traced(name)
    assert [b.name for b in graph.components()] == ["prologue", "layers", "epilogue"]
    assert [op.name for op in graph.prologue.ops] == ["embed"]
    assert [op.name for op in graph.blocks[0].ops] == LAYERS[name]
    assert [(op.name, op.inputs) for op in graph.epilogue.ops] == [
        ("final_norm", ("input",)),
        ("head", ("final_norm",)),
    ]
    edges = dict(EDGES)
    if "q_norm" in LAYERS[name]:
        edges["attention"] = ("q_norm", "k_norm", "v")
    edges["ffn_add"] = ("attn_add", "down" if "down" in LAYERS[name] else "experts_down")
    assert {op.name: op.inputs for op in graph.blocks[0].ops} == {n: edges[n] for n in LAYERS[name]}
    assert graph.layers == (0,) * CATALOGUE[name].config["num_hidden_layers"]


def test_mixtral_in_full(traced):
    graph = traced("mixtral-8x7b")
    fqns = {op.name: op.fqn.removeprefix("model.layers.0").lstrip(".") for op in graph.blocks[0].ops}
    assert fqns == {
        "attn_norm": "input_layernorm",
        "q": "self_attn.q_proj",
        "k": "self_attn.k_proj",
        "v": "self_attn.v_proj",
        "attention": "self_attn",
        "o": "self_attn.o_proj",
        "attn_add": "",
        "ffn_norm": "post_attention_layernorm",
        "router": "mlp.gate",
        "experts_up": "mlp.experts",
        "experts_act": "mlp.experts",
        "experts_down": "mlp.experts",
        "ffn_add": "",
    }
    attention, up, router = _op(graph, "attention"), _op(graph, "experts_up"), _op(graph, "router")
    assert isinstance(attention, Attention) and isinstance(up, ExpertsLinear) and isinstance(router, Router)
    assert (attention.heads.size, attention.kv_heads.size, attention.qk_dim, attention.v_dim) == (32, 8, 128, 128)
    assert attention.window is None
    assert (up.packed, up.interleaved, up.transposed, up.top_k) == (2, False, False, 2)
    assert (up.experts.size, up.in_dim.size, up.out_dim.size) == (8, 4096, 2 * 14336)
    assert router.top_k == 2
    q = _op(graph, "q")
    assert isinstance(q, Linear)
    assert q.out_dim.name == "heads*head_dim"
    assert q.signature == "t hidden, (heads head_dim) hidden -> t (heads head_dim)"


def test_norms_say_what_a_row_is(traced):
    for name, group, statistics in (("qwen3-30b-a3b", 128, 1), ("olmoe-1b-7b", 2048, 1)):
        norm = _op(traced(name), "q_norm")
        assert isinstance(norm, Norm)
        assert (norm.group, norm.num_statistics, norm.follows) == (group, statistics, "attention")
    assert _op(traced("qwen3-30b-a3b"), "q_norm").width.size == 32 * 128
    assert _op(traced("gpt-moe-7b"), "attn_norm").num_statistics == 2


def test_flops_and_cache_by_hand(traced):
    # Mixtral 8x7B, one token that sees 4096 keys, per layer:
    #   q, o 2 * 4096^2 = 33,554,432; k, v 2 * 4096 * 1024 = 8,388,608; router 4096 * 8 = 32,768
    #   2 experts * 3 * 4096 * 14336 = 352,321,536                          -> 394,297,344 multiply-adds
    #   attention 4096 * 32 * (128 + 128) = 33,554,432                      -> 427,851,776
    # head 4096 * 32000 = 131,072,000. Norms (4 * 4096 each), adds and activations come on top.
    graph = traced("mixtral-8x7b")
    matmuls = 2 * (32 * 427_851_776 + 131_072_000)
    # 65 norms at 4 * 4096; 64 adds at 4096; per layer 2 experts of 4 * 14336.
    pointwise = 65 * 4 * 4096 + 64 * 4096 + 32 * 2 * 4 * 14336
    assert graph.flops(1, 4096) == matmuls + pointwise
    # 32 layers * 8 kv heads * (128 + 128) * 2 bytes
    assert graph.kv_bytes_per_token() == 131_072
    # 48 * 4 * 256 * 2; 16 * 16 * 256 * 2; 80 * 8 * 256 * 2
    assert traced("qwen3-30b-a3b").kv_bytes_per_token() == 98_304
    assert traced("olmoe-1b-7b").kv_bytes_per_token() == 131_072
    assert traced("llama-3.1-70b").kv_bytes_per_token() == 327_680


@pytest.mark.wide
@pytest.mark.parametrize("name", WIDE)
def test_nothing_of_a_published_model_is_opaque(name, traced):
    assert not [op.fqn for _, op in traced(name).all_ops() if op.kind == "opaque"]


@pytest.mark.parametrize("name", CORE)
def test_matrix_flops_are_twice_the_active_parameters(name, traced):
    graph = traced(name)
    used = flops = 0
    for block, op in graph.all_ops():
        if isinstance(op, (Linear, Router, ExpertsLinear)):
            scale = op.top_k / op.experts.size if isinstance(op, ExpertsLinear) else 1
            used += block.repeat * op.num_parameters * scale
            flops += block.repeat * op.flops(1)
    assert flops == 2 * used
    vectors_and_table = graph.num_active_parameters - used
    embedding = graph.prologue.ops[0].num_parameters
    assert embedding <= vectors_and_table < 1.02 * embedding


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in CORE else pytest.mark.wide) for n in sorted(ACTIVE_BILLIONS)]
)
def test_active_parameters_agree_with_what_publishers_say(name, traced):
    # Publishers round, and count all weights a token passes, or not the embedding table, or not the head either.
    graph, said = traced(name), ACTIVE_BILLIONS[name]
    head = graph.epilogue.op("head")
    table = graph.prologue.op("embed").num_parameters
    active = graph.num_active_parameters
    counts = [active, active - table, active - table - head.num_parameters]
    half_a_unit = 0.05 if isinstance(said, float) else 0.5
    assert min(abs(n / 1e9 - said) for n in counts) <= max(half_a_unit, 0.02 * said)
