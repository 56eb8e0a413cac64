"""Collectives worked out by hand: hidden 64, heads 8 x 16, kv 4, experts 8, top-2, intermediate 96, vocab 256."""

from collections import Counter

import pytest

from autoshard.sharding import Degrees, collectives
from autoshard.sharding.patterns import pattern_strategy
from tests.graphs import GraphMaker

TOKENS, F32 = 10, 4.0


def listed(degrees: Degrees, pattern: str, *, residual: int | None = None, kinds: str = "mm") -> Counter:
    graph = GraphMaker().graph(kinds)
    strategy = pattern_strategy(graph, degrees, pattern, residual=residual)
    found = collectives(graph, strategy, tokens=TOKENS, activation_bytes=F32)
    return Counter({(c.where, c.kind, c.axis, c.group_size, c.num_bytes): c.count for c in found})


def test_megatron_has_one_all_reduce_per_half_block() -> None:
    # t*h*4 = 10*64*4 = 2560; logits gathered: 10*256*4 = 10240
    assert listed(Degrees(tp=4, etp=4), "megatron") == Counter(
        {
            ("prologue/embed", "all_reduce", "tp", 4, 2560): 1,
            ("layers/o", "all_reduce", "tp", 4, 2560): 2,
            ("layers/experts_down", "all_reduce", "tp", 4, 2560): 2,
            ("epilogue/head", "all_gather", "tp", 4, 10240): 1,
        }
    )


def test_gather_pattern_pays_for_the_gather_between_and_the_gather_after() -> None:
    # attention out 10*128*4 = 5120; expert rows 10*2 pairs * 96 * 4 = 7680, gathered as I not 2I; then 10*64*4 again
    assert listed(Degrees(tp=4, etp=4), "gather_out") == Counter(
        {
            ("prologue/embed", "all_gather", "tp", 4, 2560): 1,
            ("layers/o", "all_gather", "tp", 4, 5120): 2,
            ("layers/o", "all_gather", "tp", 4, 2560): 2,
            ("layers/experts_down", "all_gather", "etp", 4, 7680): 2,
            ("layers/experts_down", "all_gather", "tp", 4, 2560): 2,
            ("epilogue/head", "all_gather", "tp", 4, 10240): 1,
        }
    )


def test_gather_pattern_on_a_sharded_residual_moves_the_gather_behind_the_norm() -> None:
    # norms reduce one float32 statistic a row: 10*4 = 40; their output is gathered for q, k, v and for the experts
    found = listed(Degrees(tp=4, etp=4), "gather_out", residual=0)
    assert found["layers/attn_norm", "all_reduce", "tp", 4, 40] == 2
    assert found["layers/attn_norm", "all_gather", "tp", 4, 2560] == 2
    assert found["layers/o", "all_gather", "tp", 4, 5120] == 2
    assert not [k for k in found if k[0] == "layers/o" and k[4] == 2560], "o leaves its output sharded for free"


def test_both_matrices_contracted_reduce_before_the_activation() -> None:
    # gate|up of 20 rows * 192 * 4 = 15360 reduce-scattered; q 128, k and v 64 wide: 5120, 2560, 2560
    found = listed(Degrees(tp=4, etp=4), "gather_in")
    assert found["layers/experts_up", "reduce_scatter", "etp", 4, 15360] == 2
    assert found["layers/q", "reduce_scatter", "tp", 4, 5120] == 2
    assert found["layers/k", "reduce_scatter", "tp_kv", 4, 2560] == 2
    assert found["layers/router", "all_reduce", "tp", 4, 320] == 2


def test_kv_heads_fewer_than_tp_reduce_over_both_parts_of_tp() -> None:
    # kv = 4 on tp = 8: scatter over 4 different heads, then sum 10*64*4/4 = 640 over the 2 copies
    found = listed(Degrees(tp=8, etp=8), "gather_in")
    assert found["layers/k", "reduce_scatter", "tp_kv", 4, 2560] == 2
    assert found["layers/k", "all_reduce", "tp_rep", 2, 640] == 2


def test_experts_over_data_parallel_ranks_gather_tokens_with_their_routing() -> None:
    # dp=2 tp=2 ep=4: rows of 64*4 + 2 weights*4 + 2 indices*4 = 272 bytes, 20 of them = 5440
    # combine: 20*64*4 = 5120 scattered over dp, 2560 reduced over tp
    found = listed(Degrees(dp=2, tp=2, ep=4, batch=2), "megatron")
    assert found["layers/experts_up", "all_gather", "dp", 2, 5440] == 2
    assert found["layers/experts_down", "reduce_scatter", "dp", 2, 5120] == 2
    assert found["layers/experts_down", "all_reduce", "tp", 2, 2560] == 2


def test_expert_tensor_parallel_inside_data_parallel() -> None:
    # dp=4 tp=1, ep=2 etp=2: down yields partial sums over ep and etp: all in one reduce_scatter over dp, 40*64*4
    found = listed(Degrees(dp=4, tp=1, ep=2, etp=2, batch=4), "megatron")
    assert found["layers/experts_down", "reduce_scatter", "dp", 4, 10240] == 2
    # down split on its output instead: rows of half the width to ep, then gathered over etp for T/ep = 20 rows
    found = listed(Degrees(dp=4, tp=1, ep=2, etp=2, batch=4), "gather_out")
    assert found["layers/experts_down", "reduce_scatter", "ep", 2, 5120] == 2
    assert found["layers/experts_down", "all_gather", "etp", 2, 5120] == 2


def test_replicated_on_a_replicated_residual_moves_nothing() -> None:
    assert listed(Degrees(tp=4, etp=4), "replicated") == Counter()


def test_dense_mlp_gathers_once_after_the_activation() -> None:
    # 10*96*4 = 3840, not twice
    found = listed(Degrees(tp=4, ep=1, etp=4), "gather_out", kinds="dd")
    assert found["layers/down", "all_gather", "tp", 4, 3840] == 2
    assert sum(n for k, n in found.items() if k[0] in ("layers/gate", "layers/up", "layers/act")) == 0


@pytest.mark.parametrize("pattern", ["megatron", "gather_out", "gather_in", "replicated"])
def test_degree_one_is_free_of_communication(pattern: str) -> None:
    assert listed(Degrees(), pattern) == Counter()
