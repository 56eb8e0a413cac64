"""Choices of latent attention, mixers, gates and experts written one by one."""

from autoshard.ir import Combine, Dim, ExpertsLinear, LatentAttention, Linear, Mixer, Norm, Param
from autoshard.sharding.layout import TP, Layout
from autoshard.sharding.rules import experts, latent, linear, mixer, norm

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


def test_experts_of_their_own_modules_run_whole():
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
    )
    (whole,) = experts.options(op, TP)
    assert whole.choice is None and whole.params == ((),) * 8
