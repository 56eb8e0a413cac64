"""The parts of validation that need no ranks."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from autoshard.api.describe import legal_choices
from autoshard.ir import OpGraph
from autoshard.sharding import Degrees, Strategy, mesh_of, resolve_graph, strategy_reasons
from autoshard.sharding.legality import axis_sizes, choice_keys, chosen_options
from autoshard.sharding.patterns import pattern_strategy
from autoshard.validate import default_cases, lift_float32, plan_case, scale_degrees
from autoshard.validate.expectation import axis_ranks, expect
from autoshard.validate.report import ValidationReport
from autoshard.validate.routed import experts_modules, routed_traffic, rows_of_rank
from tests.graphs import GraphMaker
from tests.traced import traced
from tests.validate.sources import graph_of


def test_lifted_float32_is_float64() -> None:
    x = torch.randn(4, dtype=torch.float64)
    with lift_float32():
        assert x.float().dtype is torch.float64
        assert x.to(torch.float32).dtype is torch.float64
        assert x.to(dtype=torch.float32, copy=True).dtype is torch.float64
        assert F.softmax(x, dim=-1, dtype=torch.float32).dtype is torch.float64
        assert torch.arange(3, dtype=torch.float).dtype is torch.float64
        assert torch.equal(x.float(), x)
    assert x.float().dtype is torch.float32


def test_axis_ranks_by_hand() -> None:
    # dp 2, tp 4, ep 4, etp 2: rank = 4 dp + tp = 2 ep + etp
    graph, d = graph_of("mixtral"), Degrees(dp=2, tp=4, ep=4, etp=2, batch=2)
    assert axis_ranks(graph, d, "tp", 5) == (4, 5, 6, 7)
    assert axis_ranks(graph, d, "dp", 5) == (1, 5)
    assert axis_ranks(graph, d, "ep", 5) == (1, 3, 5, 7)
    assert axis_ranks(graph, d, "etp", 5) == (4, 5)
    assert axis_ranks(graph, d, "tp_ep", 5) == (5, 7)


def test_expected_traffic_by_hand() -> None:
    # Megatron, tp 4, 2 layers, float32, hidden 64, vocab 256, 4 sequences of a prompt of 6 then one token:
    # all_reduce of 24 x 64 x 4 = 6144 bytes over tp for the embedding and o, over etp for the experts (5 in all);
    # one all_gather of 24 x 256 x 4 = 24576 bytes for the logits; a sixth of all that in the decode step.
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(tp=4, etp=4), "megatron")
    found = expect(graph, strategy, sequences=4, lengths=(6, 1), dtype="float32")
    seen = {(t.step, t.kind, t.num_bytes): 0 for t in found.traffic}
    for t in found.traffic:
        seen[t.step, t.kind, t.num_bytes] += t.count
    assert seen == {
        (0, "all_reduce", 6144): 5,
        (0, "all_gather", 24576): 1,
        (1, "all_reduce", 1024): 5,
        (1, "all_gather", 4096): 1,
    }
    # layers: q 16x64, k and v 8x64 each, o 64x16, router 8x64, norms 2x64, experts 8x(48x64 + 64x24); then table and
    # head 64x64 each, last norm 64
    layer = (16 + 8 + 8 + 16 + 8 + 2) * 64 + 8 * (48 * 64 + 64 * 24)
    assert found.parameter_bytes == 4 * (2 * layer + 2 * 64 * 64 + 64)


def test_the_matrix_that_expands_a_latent_goes_with_the_heads_of_its_core() -> None:
    # Rows of it without heads would gather all of the past: batch x (past + 1) x heads x (nope + v) at every step.
    graph = traced("deepseek-v3")
    (key, *_) = [k for k in choice_keys(graph) if k.endswith("/attention")]
    block = next(b for b in graph.components() if key.startswith(b.name + "/"))
    assert f"{block.name}/kv_b" not in choice_keys(graph)
    for core in (0, None):
        strategy = Strategy(degrees=Degrees(tp=2, etp=2), choices=((key, core),))
        assert not strategy_reasons(graph, strategy)
        assert {chosen_options(graph, block, strategy)[n].choice for n in ("attention", "kv_b")} == {core}
        resolved = {r.op.name: r for r in resolve_graph(graph, strategy)[block.name]}
        assert not resolved["kv_b"].exit  # nothing is gathered there
    (reason,) = strategy_reasons(graph, replace(strategy, choices=((f"{block.name}/kv_b", 0),)))
    assert "no op" in reason.message
    kv_b = legal_choices(graph, strategy)[f"{block.name}/kv_b"]
    assert kv_b["legal"] == [] and "it goes with attention" in kv_b["excluded"][0]["reason"]


def test_scaled_degrees_keep_what_is_parallel() -> None:
    graph = graph_of("mixtral")
    d, notes = scale_degrees(graph, Degrees(dp=8, tp=4, ep=8, etp=4, batch=8), 4)
    assert (d.dp, d.tp, d.ep, d.etp) == (2, 2, 2, 2) and not notes
    d, notes = scale_degrees(graph, Degrees(tp=8, ep=8), 4)
    assert (d.dp, d.tp, d.ep, d.etp) == (1, 4, 4, 1) and not notes
    d, notes = scale_degrees(graph, Degrees(pp=2, dp=8, ep=8, batch=16), 4)
    assert (d.pp, d.dp, d.tp, d.ep, d.etp) == (2, 2, 1, 2, 1) and not notes
    d, notes = scale_degrees(graph, Degrees(pp=4, tp=8, ep=8, batch=4), 4)
    assert (d.pp, d.dp, d.tp, d.ep, d.etp) == (2, 1, 2, 2, 1) and not notes  # 2 layers: at most 2 stages
    d, notes = scale_degrees(graph, Degrees(pp=2, dp=2, tp=2, ep=4, batch=4), 2)
    assert len(notes) == 2 and all("of the plan is 1 on 2 ranks" in n for n in notes)
    d, notes = scale_degrees(graph, Degrees(dp=2, tp=2, ep=2, etp=2, batch=2), 2)
    assert d.num_devices == 2 and len(notes) == 2 and "of the plan is 1 on 2 ranks" in notes[0]


def test_cases_are_legal_and_named_once() -> None:
    for name in ("mixtral", "llama", "gpt-moe"):
        graph = graph_of(name)
        plan = pattern_strategy(
            graph, Degrees(tp=8, ep=1 if name == "llama" else 8, etp=8 if name == "llama" else 1), "megatron"
        )
        cases = default_cases(graph, 4, plan)
        assert cases[0].name == "plan" and cases[0].strategy.degrees.tp == 4
        assert len({c.name for c in cases}) == len(cases)
        assert all(not strategy_reasons(graph, c.strategy) for c in cases)
        assert all(c.strategy.degrees.num_devices == 4 for c in cases)


def test_a_plan_keeps_its_choices() -> None:
    graph = graph_of("mixtral")
    strategy = pattern_strategy(graph, Degrees(tp=8, ep=2, etp=4), "gather_in", residual=0)
    case = plan_case(graph, strategy, 4)
    assert case.strategy.choices == strategy.choices and not case.notes


@pytest.mark.parametrize("error,shown", [(1e-7, 1e-7), (float("inf"), None), (float("nan"), None)])
def test_reports_are_json(error: float, shown: float | None) -> None:
    report = ValidationReport(
        name="x",
        nproc=4,
        device="cpu",
        dtype="float32",
        degrees={"tp": 4},
        logits_max_rel_err=error,
        tolerance=1e-5,
        collectives_match=True,
        expected=(),
        observed=(),
        parameter_bytes=0,
        parameter_bytes_match=True,
    )
    assert report.to_dict()["logits_max_rel_err"] == shown and report.to_dict()["passed"]


def test_a_router_in_a_dtype_of_its_own_keeps_it() -> None:
    """Experts 8 x hidden 64 in float32 while the run is in bfloat16: 8 * 64 * (4 - 2) bytes more on every rank.

    In float64 float32 is lifted with everything else.
    """
    graph = GraphMaker().graph("m")
    router = next(op for _, op in graph.all_ops() if op.kind == "router")
    wide = replace(router, params=tuple(replace(p, dtype="float32") for p in router.params))
    ops = tuple(wide if op is router else op for op in graph.blocks[0].ops)
    own = replace(graph, blocks=(replace(graph.blocks[0], ops=ops),))
    strategy = pattern_strategy(graph, Degrees(tp=2, etp=2), "replicated")

    def held(of: OpGraph, dtype: str) -> int:
        return expect(of, strategy, sequences=2, lengths=(4,), dtype=dtype).parameter_bytes

    assert held(own, "bfloat16") - held(graph, "bfloat16") == 8 * 64 * 2
    assert held(own, "float64") == held(graph, "float64")


def test_rows_of_exchanged_tokens_by_hand() -> None:
    # 6 tokens of 2 dp ranks, top-2 of 8 experts. tp 2, ep 4 (two experts each): shares of 2 and 1 tokens a dp rank.
    chosen = [[0, 7], [0, 1], [2, 3], [6, 7], [7, 0], [5, 4]]
    graph, d = graph_of("mixtral"), Degrees(dp=2, tp=2, ep=4, batch=2)
    sizes = axis_sizes(mesh_of(graph, d))
    found = [rows_of_rank(chosen, 8, d, sizes, rank) for rank in range(4)]
    # experts 0 1 are chosen 4 times, 2 3 twice, 4 5 twice, 6 7 four times: 12 in all
    assert found == [(4, 4), (2, 2), (4, 2), (2, 4)]
    # ep 2 over dp 4 (etp 2 = two dp ranks): 8 tokens, each rank exchanges those of two dp ranks
    d = Degrees(dp=4, ep=2, etp=2, batch=4)
    sizes = axis_sizes(mesh_of(graph, d))
    found = [rows_of_rank([*chosen, [0, 1], [0, 1]], 8, d, sizes, rank) for rank in range(4)]
    assert found == [(8, 10), (8, 10), (8, 6), (8, 6)]


def test_routed_traffic_by_hand() -> None:
    """Two layers that choose differently: what arrives at rank 0 differs, what it sends does not."""
    graph, d = graph_of("mixtral"), Degrees(tp=4, ep=4)
    strategy = pattern_strategy(graph, d, "megatron", dispatch=0)
    first, second = [[0, 1]] * 4, [[6, 7]] * 4
    routing = [dict(zip(experts_modules(graph), (first, second), strict=True))]
    found = routed_traffic(graph, strategy, routing, sequences=4, lengths=(1,), dtype="float32", rank=0)
    # one token of 2 rows, 64 * 4 bytes each, is listed both ways; all 8 rows or none arrive
    assert set(found) == {(0, "all_to_all", "ep", 512)}
    assert found[0, "all_to_all", "ep", 512] == {(512, 2048): 1, (2048, 512): 1, (512, 0): 1, (0, 512): 1}
