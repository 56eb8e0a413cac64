"""Choices of latent attention, mixers, gates and experts written one by one."""

from dataclasses import replace

import pytest

from autoshard.errors import InvalidInputError
from autoshard.ir import (
    Attention,
    Combine,
    Dim,
    ExpertsLinear,
    HeadSplit,
    LatentAttention,
    Linear,
    Mixer,
    Norm,
    Param,
)
from autoshard.sharding.layout import ETP, TP, Layout
from autoshard.sharding.option import ParamSharding
from autoshard.sharding.placements import ParamPlacement, Placement, scale_placement
from autoshard.sharding.rules import attention, experts, latent, linear, mixer, norm, own_experts

R, S = Layout.REPLICATED, Layout.SHARDED


def _latent():
    return LatentAttention(
        name="attention",
        fqn="attn",
        inputs=("q_b", "kv_b", "kv_a", "indexer"),
        heads=Dim(name="heads", size=8),
        latent=Dim(name="kv_rank", size=16),
        nope_dim=12,
        rope_dim=8,
        v_dim=16,
    )


def test_latent_attention_is_split_by_heads_and_keeps_the_latent_whole():
    by_heads, whole = latent.options(_latent(), TP)
    assert by_heads.needs == (S, S, R, R) and by_heads.yields is S
    assert by_heads.divides == ((8, "tp", "heads"),)
    assert whole.needs == (R, R, R, R) and whole.choice is None


def test_the_expansion_of_a_latent_is_not_split_by_its_columns():
    rank, wide = Dim(name="kv_rank", size=16), Dim(name="heads*(nope+v)", size=224)
    op = Linear(name="kv_b", fqn="kv_b", inputs=("kv_a_norm",), in_dim=rank, out_dim=wide)
    assert [o.choice for o in linear.options(op, TP)] == [0, None]
    other = Linear(name="q_b", fqn="q_b", inputs=("q_a_norm",), in_dim=Dim(name="q_rank", size=24), out_dim=wide)
    assert [o.choice for o in linear.options(other, TP)] == [0, 1, None]


def test_norms_of_a_latent_and_mixers_run_whole():
    width = Dim(name="kv_rank", size=16)
    assert [o.choice for o in norm.options(Norm(name="n", fqn="n", inputs=("x",), width=width, group=16), TP)] == [None]
    op = Mixer(name="mixer", fqn="m", inputs=("a", "b"), variety="recurrent", width=Dim(name="features", size=64))
    assert [(o.choice, o.needs) for o in mixer.options(op, TP)] == [(None, (R, R))]


def test_a_gate_follows_the_core_it_gates():
    width = Dim(name="heads*head_dim", size=128)
    gate = Combine(name="attn_gate", fqn="a", inputs=("q", "attention"), follows="attention", width=width)
    assert [(o.choice, o.needs, o.yields) for o in mixer.options(gate, TP)] == [(0, (S, S), S), (None, (R, R), R)]
    free = Combine(name="shared_gated", fqn="m", inputs=("down", "shared_gate"), width=width)
    assert [o.choice for o in mixer.options(free, TP)] == [None]


def test_experts_that_the_models_own_code_runs():
    weights = tuple(Param(fqn=f"experts.{i}.w1.weight", shape=(48, 32), dtype="bfloat16") for i in range(8))
    op = ExpertsLinear(
        name="experts_up",
        fqn="experts",
        inputs=("ffn_norm", "router"),
        params=weights,
        stage="up",
        experts=Dim(name="experts", size=8),
        in_dim=Dim(name="hidden", size=32),
        out_dim=Dim(name="intermediate", size=48),
        top_k=2,
        form="listed",
    )
    split, whole = own_experts.options(op, ETP)
    assert [p[0].member for p in whole.params] == [(i, 8) for i in range(8)]
    assert (split.needs, split.yields, split.params[3][1].dim) == ((R, R), S, 0)  # rows of w1
    assert (1, "dp", "the tokens that an expert loop gets") in split.divides  # a dp rank has its own
    (inside,) = own_experts.options(replace(op, form="inside"), ETP)
    assert inside.choice is None and inside.params == ((),) * 8


def _param(name, shape, parts=()):
    return Param(fqn=name, shape=shape, dtype="bfloat16", parts=parts)


def test_a_mixer_by_heads_has_its_rows_of_equal_parts_and_all_of_unequal_ones():
    op = Mixer(
        name="mixer",
        fqn="m",
        inputs=("in", "dt"),
        params=(_param("A_log", (8,), (8,)), _param("conv", (64, 1, 4), (32, 32)), _param("c", (80,), (48, 16, 16))),
        variety="recurrent",
        width=Dim(name="features", size=64),
        split=HeadSplit(size=4),
        whole=("dt",),
    )
    by_heads, whole = mixer.options(op, TP)
    assert by_heads.needs == (S, R) and by_heads.yields is S and by_heads.divides == ((4, "tp", "heads"),)
    assert by_heads.params == (
        (ParamSharding(axis="tp", dim=0),),
        (ParamSharding(axis="tp", dim=0, packed=2),),  # a strided shard: half of x, half of the gate
        (),  # no placement says "a quarter of 48, of 16 and of 16"
    )
    assert whole.choice is None and whole.needs == (R, R)


def test_what_lies_in_the_module_of_a_mixer_follows_it():
    width = Dim(name="features", size=64)
    of_head = Norm(name="n", fqn="n", inputs=("mixer",), follows="mixer", width=width, group=64, within_heads=True)
    assert [(o.choice, o.internal) for o in norm.options(of_head, TP)] == [(0, ()), (None, ())]
    step = Linear(
        name="dt",
        fqn="dt",
        inputs=("x",),
        follows="mixer",
        in_dim=Dim(name="features", size=8),
        out_dim=width,
        params=(_param("dt.weight", (64, 8), (64,)), _param("dt.bias", (64,), (64,))),
    )
    split, whole = linear.options(step, TP)
    assert (split.needs, split.yields, split.params[1]) == ((R,), S, (ParamSharding(axis="tp", dim=0),))
    assert whole.choice is None


def test_rows_of_unequal_parts_stay_whole_and_every_part_must_divide():
    fused = Linear(
        name="qkv",
        fqn="qkv",
        inputs=("x",),
        in_dim=Dim(name="hidden", size=64),
        out_dim=Dim(name="qkv", size=96),
        parts=(64, 16, 16),
        params=(_param("w", (96, 64)), Param(fqn="b", shape=(96,), dtype="bfloat16", role="bias")),
    )
    rows, columns, _ = linear.options(fused, TP)
    assert rows.params == ((), ()) and [size for size, _, _ in rows.divides] == [64, 16, 16]
    assert columns.params == ((ParamSharding(axis="tp", dim=1),), ())


def _core(**more):
    heads, kv = Dim(name="heads", size=8), Dim(name="kv_heads", size=2)
    return Attention(name="a", fqn="a", inputs=("qkv",), heads=heads, kv_heads=kv, qk_dim=8, v_dim=8, **more)


def test_a_core_with_one_projection_is_split_as_far_as_its_module_goes():
    assert [o.choice for o in attention.options(_core(), TP, separate=False)] == [None]
    by_heads, _ = attention.options(_core(split=HeadSplit(size=2)), TP, separate=False)
    assert by_heads.needs == (S,) and (2, "tp", "kv_heads") in by_heads.divides
    told = _core(split=HeadSplit(size=1, readers=("qkv",)), unsplit="every output needs all of its inputs")
    assert [o.choice for o in attention.options(told, TP, separate=False)] == [None]


def _experts(stage, out, inner, **more):
    shape = (4, out, inner)
    return ExpertsLinear(
        name="e",
        fqn="e",
        inputs=("x", "router") if stage == "up" else ("act",),
        params=(Param(fqn="e.w", shape=shape, dtype="bfloat16"),),
        stage=stage,
        experts=Dim(name="experts", size=4),
        in_dim=Dim(name="in", size=inner),
        out_dim=Dim(name="out", size=out),
        top_k=2,
        **more,
    )


def test_quantised_experts_are_cut_between_blocks():
    # gate|up of 2 x 768 rows in blocks of 128: 6 blocks each; 768 / 4 = 192 is one block and a half, 768 / 3 = 2 blocks
    rows, columns, _ = experts.options(_experts("up", 2 * 768, 2048, packed=2, blocks=(128, 128)), ETP)
    assert rows.divides[1] == (6, "etp", "blocks of 128 of out")
    assert columns.divides[1] == (16, "etp", "blocks of 128 of in")
    # mxfp4 of gpt-oss: 2880 = 90 runs of 32 along the contracted dim, rows are free
    rows, columns, _ = experts.options(_experts("down", 2880, 2880, blocks=(1, 32)), ETP)
    assert rows.divides[1] == (2880, "etp", "out") and columns.divides[1] == (90, "etp", "blocks of 32 of in")
    # 576 is four blocks and a half: the last one straddles, nothing is cut
    rows, _, _ = experts.options(_experts("down", 576, 2048, blocks=(128, 128)), ETP)
    assert rows.divides[1][0] == 1


def test_scales_go_where_their_blocks_go():
    weight = ParamPlacement(
        fqn="e.w",
        shape=(4, 1536, 2048),
        dtype="float8_e4m3fn",
        mesh_dims=("ep", "etp"),
        placements=(Placement(kind="shard", dim=0), Placement(kind="shard", dim=1, packed=2)),
    )
    scale = scale_placement(weight, (1, 128, 128))
    assert scale.fqn == "e.w_scale_inv" and scale.shape == (4, 12, 16) and scale.placements == weight.placements
    odd = ParamPlacement(
        fqn="w", shape=(4, 576, 64), dtype="fp8", mesh_dims=("etp",), placements=(Placement(kind="shard", dim=1),)
    )
    with pytest.raises(InvalidInputError, match="not made of whole blocks of 128"):
        scale_placement(odd, (1, 128, 128))
