"""Many architectures, small: parameters exact, nothing opaque, and the ops that make each of them what it is."""

import pytest
from pydantic import TypeAdapter

from autoshard.ir import (
    Attention,
    Combine,
    ExpertsLinear,
    Indexer,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    OpGraph,
    Router,
)
from autoshard.sharding.space import options
from autoshard.tracing import resolve, trace_source
from tests.tracing.families import FAMILIES, marked

GRAPH = TypeAdapter(OpGraph)
MLA = ["attn_norm", "q_a", "q_a_norm", "q_b", "kv_a", "kv_a_norm", "kv_b", "attention", "o", "attn_add"]
INDEXER = ["indexer_q", "indexer_k", "indexer_k_norm", "indexer_weights", "indexer"]
DSA = [*MLA[:7], *INDEXER, *MLA[7:]]
ROUTED = ["router", "experts_up", "experts_act", "experts_down"]
DENSE = ["gate", "up", "act", "down"]
FUSED_QKV = ["attn_norm", "qkv", "attention", "o", "attn_add"]
SOFTMAX = ["attn_norm", "q", "k", "v", "attention", "o", "attn_add"]


def _names(graph, block):
    return [op.name for op in graph.blocks[block].ops]


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_parameters_are_the_models_and_nothing_is_opaque(name, family):
    graph = family(name)
    model = resolve({"model_type": name, **FAMILIES[name]}).build()
    held = {p.fqn: p.shape for *_, p in graph.parameters() if p.shared_with is None}
    assert held == {n: tuple(p.shape) for n, p in model.named_parameters()}
    assert not [op.fqn for _, op in graph.all_ops() if op.kind == "opaque"]
    # What is kept on disk reads as what it was.
    assert GRAPH.validate_json(GRAPH.dump_json(graph)) == graph


def test_latent_attention_is_a_chain_with_one_cached_latent(family):
    graph = family("deepseek_v3")
    assert [b.name for b in graph.blocks] == ["dense_layers", "moe_layers"]
    assert _names(graph, 0) == [*MLA, "ffn_norm", *DENSE, "ffn_add"]
    assert _names(graph, 1) == [*MLA, "ffn_norm", *ROUTED, *DENSE, "ffn_add"]
    core = graph.blocks[0].op("attention")
    assert isinstance(core, LatentAttention)
    assert core.inputs == ("q_b", "kv_b", "kv_a")
    assert (core.heads.size, core.latent.size, core.nope_dim, core.rope_dim, core.v_dim) == (8, 16, 12, 8, 16)
    # One layer caches 16 + 8 elements a token, whatever the heads; two layers in bfloat16.
    assert graph.kv_bytes_per_token() == 2 * (16 + 8) * 2
    # Absorbed, a token that sees 10 keys: scores over 16 + 8, values over 16, 8 heads, two per multiply-add.
    assert core.flops(1, 10) == 2 * 10 * 8 * (16 + 8 + 16)
    # As the code runs it: keys of 12 + 8, values of 16.
    assert core.expanded_flops(1, 10) == 2 * 10 * 8 * (12 + 8 + 16)
    widths = {op.name: (op.in_dim.size, op.out_dim.size) for op in graph.blocks[0].ops if isinstance(op, Linear)}
    assert widths["kv_a"] == (64, 16 + 8) and widths["kv_b"] == (16, 8 * (12 + 16)) and widths["q_b"] == (24, 8 * 20)


@pytest.mark.parametrize("name", ["deepseek_v32", "glm_moe_dsa"])
def test_an_indexer_limits_the_keys_of_latent_attention(name, family):
    graph = family(name)
    assert set(_names(graph, 0)) == {*DSA, "ffn_norm", *DENSE, "ffn_add"}
    indexer, core = graph.blocks[0].op("indexer"), graph.blocks[0].op("attention")
    assert isinstance(indexer, Indexer) and isinstance(core, LatentAttention)
    assert set(indexer.inputs) == {"indexer_q", "indexer_k_norm", "indexer_weights"}
    assert (indexer.heads.size, indexer.head_dim, indexer.top_k) == (4, 16, 96)
    assert core.inputs == ("q_b", "kv_b", "kv_a", "indexer") and core.selected == 96
    # Of 1000 keys 96 are looked at; the indexer looks at all of them.
    assert core.flops(1, 1000) == 2 * 96 * 8 * (16 + 8 + 16)
    assert indexer.flops(1, 1000) == 2 * 1000 * 4 * (16 + 1)
    # Two layers: latent and rope key, and one key of the indexer.
    assert graph.kv_bytes_per_token() == 2 * (16 + 8 + 16) * 2


def test_sinks_and_windows_of_spelled_out_attention(family):
    graph = family("gpt_oss")
    windows = []
    for block in graph.blocks:
        core = block.op("attention")
        assert isinstance(core, Attention)
        assert [(p.fqn.rpartition(".")[2], p.shape) for p in core.params] == [("sinks", (8,))]
        assert (core.heads.size, core.kv_heads.size, core.qk_dim, core.v_dim) == (8, 4, 16, 16)
        windows.append(core.window)
    assert windows == [8, None]
    up = graph.blocks[0].op("experts_up")
    assert isinstance(up, ExpertsLinear)
    assert (up.packed, up.interleaved, up.transposed) == (2, True, True)
    assert [p.role for p in up.params] == ["weight", "bias"]


def test_chunks_limit_what_a_query_sees(family):
    assert [b.op("attention").window for b in family("llama4_text").blocks] == [32, 32, None]
    assert [b.op("attention").window for b in family("gemma2").blocks] == [8, None]


def test_a_shared_expert_and_its_gate(family):
    graph = family("qwen2_moe")
    block = graph.blocks[0]
    assert set(_names(graph, 0)) == {*SOFTMAX, "ffn_norm", *ROUTED, *DENSE, "shared_gate", "shared_gated", "ffn_add"}
    assert block.op("shared_gate").out_dim.size == 1
    gated = block.op("shared_gated")
    assert isinstance(gated, Combine) and set(gated.inputs) == {"down", "shared_gate"} and gated.follows is None
    assert set(block.op("ffn_add").inputs) == {"attn_add", "experts_down", "shared_gated"}


@pytest.mark.parametrize("name", ["qwen3_next", pytest.param("qwen3_5_moe_text", marks=pytest.mark.wide)])
def test_linear_attention_keeps_a_state_and_gates_its_output(name, family):
    graph = family(name)
    assert [b.repeat for b in graph.blocks] == [3, 1]
    linear, softmax = graph.blocks
    mixers = [op for op in linear.ops if isinstance(op, Mixer)]
    assert len(mixers) == 1 and mixers[0].variety == "recurrent"
    assert {p.fqn.split(".linear_attn.")[1] for p in mixers[0].params} == {"conv1d.weight", "A_log", "dt_bias"}
    # 4 value heads x key 8 x value 12 in float32 or bfloat16, and 4 past inputs of 2 * 2 * 8 + 4 * 12 channels in
    # bfloat16.
    assert mixers[0].state_elements == 4 * 8 * 12
    assert mixers[0].state_bytes in (384 * 4 + 80 * 4 * 2, 384 * 2 + 80 * 4 * 2)
    assert mixers[0].flops(1) == 6 * 384 + 2 * 80 * 4
    assert graph.state_bytes_per_sequence() == 3 * mixers[0].state_bytes
    gate = softmax.op("attn_gate")
    assert isinstance(gate, Combine) and gate.follows == "attention" and gate.width.size == 8 * 16
    assert softmax.op("o").inputs == ("attn_gate",)
    # q holds queries and gate of every head side by side.
    assert softmax.op("q").out_dim.size == 2 * 8 * 16


def test_state_space_layers(family):
    graph = family("nemotron_h")
    mixer = next(op for op in graph.blocks[0].ops if isinstance(op, Mixer))
    # 8 heads x 16 x state 16; convolution over 128 + 2 groups x 2 x 16 channels, 4 past inputs.
    assert mixer.state_elements == 8 * 16 * 16
    assert mixer.convolution_flops_per_token == 2 * 192 * 4
    assert isinstance(graph.blocks[0].op("mixer_norm"), Norm)
    jamba = family("jamba").blocks[0]
    kinds = {op.name: op.variety for op in jamba.ops if isinstance(op, Mixer)}
    assert list(kinds.values()) == ["convolution", "recurrent"]
    # 2 * 64 channels x state 16 in the recurrence, 4 past inputs of the convolution; only one of the two holds them.
    assert [op.state_elements for op in jamba.ops if isinstance(op, Mixer)] == [0, 128 * 16]


def test_lightning_attention_keeps_its_state_in_a_cache_of_the_models_own(family):
    graph = family("minimax")
    assert [b.repeat for b in graph.blocks] == [3, 1]
    (mixer,) = [op for op in graph.blocks[0].ops if isinstance(op, Mixer)]
    # 8 heads x key 16 x value 16 in bfloat16, in each of three layers.
    assert mixer.state_elements == 8 * 16 * 16
    assert mixer.state_bytes == 8 * 16 * 16 * 2
    assert graph.state_bytes_per_sequence() == 3 * 4096
    # One layer of softmax attention: keys and values of 4 heads x 16.
    assert graph.kv_bytes_per_token() == 4 * (16 + 16) * 2


@pytest.mark.wide
def test_keys_that_are_the_values_are_cached_once(family):
    cores = [op for _, op in family("deepseek_v4").all_ops() if isinstance(op, Attention)]
    assert len(cores) == 3 and all(c.shared_kv and c.kv_heads.size == 1 for c in cores)
    # One kv head of 32, once for keys and values.
    assert {c.kv_elements_per_token for c in cores} == {32}
    assert not any(op.shared_kv for _, op in family("gpt_oss").all_ops() if isinstance(op, Attention))


def test_keys_pooled_from_several_tokens_stand_beside_those_in_the_window(family):
    graph = family("deepseek_v4")
    plain, sparse, heavy = (b.op("attention") for b in graph.blocks)
    assert [(c.window, c.pooled, c.selected) for c in (plain, sparse, heavy)] == [
        (16, None, None),
        (16, 4, 8),
        (16, 32, None),
    ]
    # A token that sees 1000 others: 16 keys in its window, 8 picked of 250 pooled from four, all 31.25 pooled from 32.
    assert sparse.flops(1, 1000) == 2 * (16 + 8) * 8 * (32 + 32)
    assert heavy.flops(1, 1000) == 2 * (16 + 1000 / 32) * 8 * (32 + 32)
    indexer = graph.blocks[1].op("indexer")
    assert isinstance(indexer, Indexer) and (indexer.heads.size, indexer.top_k, indexer.pooled) == (4, 8, 4)
    assert indexer.flops(1, 1000) == 2 * 250 * 4 * (16 + 1)
    # Three windows of 32 elements; pooled keys of 32 and the indexer's of 16 every 4 tokens, of 32 every 32; bfloat16.
    assert graph.kv_bytes_per_token() == (3 * 32 + (32 + 16) / 4 + 32 / 32) * 2
    assert graph.kv_growth(16) == ((32 + 16) / 4 + 32 / 32) * 2
    # Buffers of tokens yet to be pooled, with their gates: of four at most three, twice as wide and in bfloat16, and
    # the last four with float32 gates; of 32 at most 31.
    four = 3 * 2 * (64 + 32) * 2 + 4 * (32 + 16) * (2 + 4)
    assert [[op.state_bytes for op in b.ops if isinstance(op, Mixer)][:1] for b in graph.blocks] == [
        [],
        [four],
        [31 * 2 * 32 * 2],
    ]
    assert graph.state_bytes_per_sequence() == four + 31 * 2 * 32 * 2


def test_routers_without_topk_and_with_corrections(family):
    router = family("phimoe").blocks[0].op("router")
    assert isinstance(router, Router) and router.top_k == 2
    assert family("deepseek_v3").blocks[1].op("router").top_k == 2


def test_experts_that_do_nothing_take_their_share_of_the_choices():
    zeros = {**FAMILIES["longcat_flash"], "zero_expert_num": 8, "moe_topk": 4}
    block = trace_source(resolve({"model_type": "longcat_flash", **zeros})).blocks[0]
    experts = [op for op in block.ops if isinstance(op, ExpertsLinear)]
    # 4 of 16 rows, 8 of which have weights: 2 of 8.
    assert experts and all((op.experts.size, op.top_k) == (8, 2) for op in experts)
    assert block.op("router").top_k == 4


def test_experts_cut_out_of_flat_matrices(family):
    graph = family("dbrx")
    (block,) = graph.blocks
    assert set(_names(graph, 0)) == {*FUSED_QKV, "ffn_norm", "experts_gate", *ROUTED, "ffn_add"}
    shapes = {op.name: [p.shape for p in op.params] for op in block.ops if isinstance(op, ExpertsLinear)}
    assert set(map(str, shapes.values())) == {"[(384, 64)]"}  # 8 experts of 48 rows
    gate, down = block.op("experts_gate"), block.op("experts_down")
    assert (gate.in_dim.size, gate.out_dim.size, gate.experts.size, gate.top_k) == (64, 48, 8, 2)
    assert (down.in_dim.size, down.out_dim.size) == (48, 64)
    # Of 3 x 8 x 48 x 64 elements a layer, 6 of 8 experts are not used.
    assert graph.num_parameters - graph.num_active_parameters == 2 * 3 * 6 * 48 * 64


def test_scales_of_chosen_experts_are_the_routers(family):
    router = family("gemma4_text").blocks[0].op("router")
    assert [(p.fqn.rpartition(".")[2], p.shape, p.role) for p in router.params] == [
        ("weight", (8, 64), "weight"),
        ("per_expert_scale", (8,), "correction"),
    ]


def test_parameter_counts_by_hand(family):
    # DeepSeek-V3, one layer's attention: 64*24 + 24 + 24*160 + 64*24 + 16 + 16*224 + 128*64 = 18,728 (q_a, its norm,
    # q_b, kv_a, its norm, kv_b, o).
    block = family("deepseek_v3").blocks[0]
    inside = [op for op in block.ops if op.name in MLA[1:9]]
    assert sum(op.num_parameters for op in inside) == 1536 + 24 + 3840 + 1536 + 16 + 3584 + 8192


def test_experts_that_are_not_told_their_tokens_are_a_batch(family):
    """Llama-4's experts multiply every token with every expert: their module is given one tensor, no expert numbers."""
    for name, form, offered in (("llama4_text", "batched", {0, None}), ("gpt_oss", "routed", {0, 1, None})):
        found = [(b, op) for b, op in family(name).all_ops() if isinstance(op, ExpertsLinear)]
        assert found and {op.form for _, op in found} == {form}
        assert all({o.choice for o in options(b, op)} == offered for b, op in found), name
