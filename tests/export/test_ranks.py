"""Exported files on real ranks, in processes that cannot import autoshard: the unsharded model's logits.

The fast suite runs one family on two ranks; ``-m wide`` all four families on four ranks, several patterns each.
"""

from pathlib import Path

import pytest

from autoshard.api.models import graph_of, source_of
from autoshard.export import TARGETS
from autoshard.sharding import Degrees, Strategy
from autoshard.sharding.patterns import pattern_strategy
from tests.export.checkpoints import FAMILIES, build, export_job, run_ranks, write_checkpoint
from tests.export.conftest import MakePlan

TOLERANCE = 1e-5
"""Of max|a-b| / max|b| in float32, as for validation."""


def check(jobs: list[dict], wants: list[int], nproc: int, folder: Path) -> None:  # type: ignore[type-arg]
    """Every job gives the logits on every rank, and a rank holds the elements that the plan says."""
    for job, held, by_rank in zip(jobs, wants, run_ranks(jobs, nproc, folder), strict=True):
        for rank, result in enumerate(by_rank):
            assert "exception" not in result, (job["file"], rank, result)
            assert max(result["errors"]) < TOLERANCE, (job["file"], rank, result["errors"])
            assert len(result["errors"]) == 3  # the prompt and two cached steps
            assert result["held"] == held, (job["file"], rank)


def elements_held(plan) -> int:  # type: ignore[no-untyped-def]
    """Elements of one rank's parameters by the plan: each whole shape divided by the sizes it is sharded over."""
    shapes = {p.fqn: p.shape for _, _, _, p in plan.graph.parameters()}
    total = 0
    for name, shape in shapes.items():
        count = 1
        for n in shape:
            count *= n
        for placement, size in zip(plan.placements[name], plan.mesh_for(name).shape, strict=True):
            count //= 1 if placement.is_replicate() else size
        total += count
    return total


@pytest.mark.wide
def test_one_family_on_two_ranks(tmp_path: Path, plan_of_strategy: MakePlan) -> None:
    model = build("qwen3_moe", num_hidden_layers=1)
    checkpoint = write_checkpoint(model, tmp_path / "checkpoint")
    graph = graph_of(model, source_of(model))
    jobs, wants = [], []
    for target, degrees in (("transformers", Degrees(tp=2, ep=2)), ("dtensor", Degrees(dp=2, ep=1, etp=2, batch=2))):
        strategy = TARGETS[target].strategy(graph, degrees)
        assert strategy is not None
        plan = plan_of_strategy(graph, strategy, "H100x2")
        jobs.append(export_job(plan, target, checkpoint, tmp_path / target))
        wants.append(elements_held(plan))
    check(jobs, wants, 2, tmp_path)


def strategies(target: str, graph) -> list[Strategy]:  # type: ignore[no-untyped-def]
    """What four ranks run: EP and TP, and for the standalone file every pattern on mixed degrees."""
    ep, tp, mixed = Degrees(tp=4, ep=4), Degrees(tp=4, etp=4), Degrees(dp=2, tp=2, ep=2, etp=2, batch=2)
    exchange = pattern_strategy(graph, ep, "megatron", dispatch=0)
    if target == "transformers":
        found = [exchange, *(TARGETS[target].strategy(graph, d) for d in (ep, tp))]
        split_input = [s for s in (pattern_strategy(graph, ep, "gather_in"),) if not TARGETS[target].reasons(graph, s)]
        return [s for s in (*found, *split_input) if s is not None]
    return [
        pattern_strategy(graph, ep, "megatron"),
        pattern_strategy(graph, tp, "gather_out"),
        pattern_strategy(graph, mixed, "gather_in"),
        pattern_strategy(graph, mixed, "megatron", residual=0),
        exchange,
    ]


@pytest.mark.wide
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_on_four_ranks(family: str, tmp_path: Path, plan_of_strategy: MakePlan) -> None:
    model = build(family)
    checkpoint = write_checkpoint(model, tmp_path / "checkpoint")
    graph = graph_of(model, source_of(model))
    jobs, wants = [], []
    for target in ("transformers", "dtensor"):
        chosen = strategies(target, graph)
        assert len(chosen) >= 2
        for i, strategy in enumerate(chosen):
            plan = plan_of_strategy(graph, strategy, "H100x4")
            jobs.append(export_job(plan, target, checkpoint, tmp_path / f"{target}{i}"))
            wants.append(elements_held(plan))
    check(jobs, wants, 4, tmp_path)


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_gathered_attention_where_kv_heads_do_not_spread(tmp_path: Path, plan_of_strategy: MakePlan) -> None:
    """2 kv heads on tp=4: transformers gets whole attention, the standalone file copied kv heads."""
    model = build("mixtral", num_key_value_heads=2)
    checkpoint = write_checkpoint(model, tmp_path / "checkpoint")
    graph = graph_of(model, source_of(model))
    degrees = Degrees(tp=4, etp=4)
    whole = TARGETS["transformers"].strategy(graph, degrees)
    copied = pattern_strategy(graph, degrees, "megatron")
    assert whole is not None and whole.choice("layers/q") is None
    assert any("kv heads cannot be copied" in r for r in TARGETS["transformers"].reasons(graph, copied))
    plans = {
        "transformers": plan_of_strategy(graph, whole, "H100x4"),
        "dtensor": plan_of_strategy(graph, copied, "H100x4"),
    }
    jobs = [export_job(plan, target, checkpoint, tmp_path / target) for target, plan in plans.items()]
    check(jobs, [elements_held(p) for p in plans.values()], 4, tmp_path)
