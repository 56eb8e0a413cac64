"""Collectives worked out by hand: hidden 64, heads 8 x 16, kv 4, experts 8, top-2, intermediate 96, vocab 256."""

from collections import Counter

import pytest

from autoshard.sharding import Degrees, collectives
from autoshard.sharding.patterns import pattern_strategy
from tests.graphs import GraphMaker

TOKENS, F32 = 10, 4.0


def listed(
    degrees: Degrees, pattern: str, *, residual: int | None = None, kinds: str = "mm", activation_bytes: float = F32
) -> Counter:
    graph = GraphMaker().graph(kinds)
    strategy = pattern_strategy(graph, degrees, pattern, residual=residual)
    found = collectives(graph, strategy, tokens=TOKENS, activation_bytes=activation_bytes)
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
    # scores of 8 experts are sent in float32, 10*8*4, where activations are bfloat16 too; q is 10*128*2 then
    found = listed(Degrees(tp=4, etp=4), "gather_in", activation_bytes=2)
    assert found["layers/router", "all_reduce", "tp", 4, 320] == 2
    assert found["layers/q", "reduce_scatter", "tp", 4, 2560] == 2


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


def exchanged(degrees: Degrees, pattern: str, *, tokens: int = TOKENS, residual: int | None = None) -> Counter:
    graph = GraphMaker().graph("mm")
    strategy = pattern_strategy(graph, degrees, pattern, dispatch=0, residual=residual)
    found = collectives(graph, strategy, tokens=tokens, activation_bytes=F32)
    return Counter(
        {
            (c.where.removeprefix("layers/"), c.kind, c.axis, c.group_size, c.num_bytes): c.count
            for c in found
            if c.where.startswith("layers/experts")
        }
    )


def test_tokens_are_exchanged_with_the_ranks_of_their_experts() -> None:
    # dp=2 tp=2 ep=4: a rank has 5 of its dp rank's 10 tokens, 10 rows of 64*4 = 256 bytes to the experts and back; 8
    # experts' counts are 32 bytes; then the 10 tokens are whole again on both tp ranks: 10*64*4
    found = exchanged(Degrees(dp=2, tp=2, ep=4, batch=2), "megatron")
    assert found == Counter(
        {
            ("experts_up", "all_to_all", "ep", 4, 32): 2,
            ("experts_up", "all_to_all", "ep", 4, 2560): 2,
            ("experts_down", "all_to_all", "ep", 4, 2560): 2,
            ("experts_down", "all_gather", "tp_ep", 2, 2560): 2,
        }
    )


def test_exchanged_tokens_that_do_not_divide_are_padded() -> None:
    # ep=4 inside tp=4: 5 tokens are shares of 2, 2, 1 and none; a full one is 4 rows, and 4 shares are 8 tokens
    found = exchanged(Degrees(tp=4, ep=4), "megatron", tokens=5)
    assert found["experts_up", "all_to_all", "ep", 4, 4 * 256] == 2
    assert found["experts_down", "all_gather", "tp_ep", 4, 8 * 256] == 2
    # one token, as in decode: one row of it for each of its two experts
    assert exchanged(Degrees(tp=4, ep=4), "megatron", tokens=1)["experts_down", "all_to_all", "ep", 4, 2 * 256] == 2


def test_exchange_with_expert_tensor_parallel() -> None:
    # tp=4 = ep 2 x etp 2: 5 tokens a rank; partial results are summed over etp where they are weighted: 5*256
    found = exchanged(Degrees(tp=4, ep=2, etp=2), "megatron")
    assert found["experts_down", "all_reduce", "etp", 2, 1280] == 2
    assert found["experts_down", "all_gather", "tp_ep", 2, 2560] == 2
    # dp=4 = ep 2 x 2: the tokens of two dp ranks, 20 with their routing (272 bytes a row), are exchanged by both
    found = exchanged(Degrees(dp=4, ep=2, etp=2, batch=4), "megatron")
    assert found["experts_up", "all_gather", "dp_etp", 2, 20 * 272] == 2
    assert found["experts_up", "all_to_all", "ep", 2, 40 * 256] == 2
    assert found["experts_down", "reduce_scatter", "dp_etp", 2, 20 * 256] == 2
    # up contracted, down split on its output: half rows both ways, gathered inside and after
    found = exchanged(Degrees(tp=4, ep=2, etp=2), "gather_in")
    assert found["experts_up", "all_to_all", "ep", 2, 10 * 128] == 2
    # gate|up of 10 arriving rows * 192 * 4 is summed over etp
    assert found["experts_up", "reduce_scatter", "etp", 2, 10 * 768] == 2
    found = exchanged(Degrees(tp=4, ep=2, etp=2), "gather_out")
    assert found["experts_down", "all_to_all", "ep", 2, 10 * 128] == 2
    assert found["experts_down", "all_gather", "etp", 2, 5 * 256] == 2


def test_nothing_is_exchanged_without_expert_parallelism() -> None:
    assert exchanged(Degrees(dp=2, tp=2, ep=1, etp=4, batch=2), "megatron") == Counter(
        {
            ("experts_up", "all_gather", "dp", 2, 5440): 2,
            ("experts_down", "reduce_scatter", "dp", 2, 5120): 2,
            ("experts_down", "all_reduce", "tp", 2, 2560): 2,
        }
    )


def test_split_tokens_are_summed_into_shares_and_gathered_after_the_norms() -> None:
    # 10 tokens on tp=4 are shares of 3, padded to 12: 12*64*4 = 3072. The embedding stays whole: 10*64*4 = 2560.
    assert listed(Degrees(tp=4, etp=4), "megatron", residual=1) == Counter(
        {
            ("prologue/embed", "all_reduce", "tp", 4, 2560): 1,
            ("layers/attn_norm", "all_gather", "tp", 4, 3072): 2,
            ("layers/o", "reduce_scatter", "tp", 4, 3072): 2,
            ("layers/ffn_norm", "all_gather", "tp", 4, 3072): 2,
            ("layers/experts_down", "reduce_scatter", "tp", 4, 3072): 2,
            ("epilogue/final_norm", "all_gather", "tp", 4, 3072): 1,
            ("epilogue/head", "all_gather", "tp", 4, 10240): 1,
        }
    )


def test_split_tokens_behind_data_parallel_experts() -> None:
    # dp=2 tp=2 ep=4: 20 tokens summed over dp to 10, then over tp to 5 on each rank
    found = listed(Degrees(dp=2, tp=2, ep=4, batch=2), "megatron", residual=1)
    assert found["layers/experts_down", "reduce_scatter", "dp", 2, 5120] == 2
    assert found["layers/experts_down", "reduce_scatter", "tp", 2, 2560] == 2
