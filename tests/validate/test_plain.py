"""What people write in plain PyTorch, on real ranks: what its space offers runs, what it does not says why."""

import pytest

from autoshard.api.describe_model import restricted
from autoshard.ir import Attention, ExpertsLinear, OpGraph
from autoshard.sharding import Degrees, degree_reasons, strategy_reasons
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import FactorySource, trace
from autoshard.validate import Case, ModelJob, validate
from tests.validate.strategies import random_strategies

KINDS = ("WhereLoop", "MaskLoop", "DenseLoop", "Fused", "Einsum", None)


def source(kind: str | None) -> FactorySource:
    kwargs = {} if kind is None else {"experts": kind}
    return FactorySource(name=str(kind), target="tests.validate.plain_ranks:build", kwargs=kwargs)


def graph_of(kind: str | None) -> OpGraph:
    return trace(source(kind).build(dtype="float32"), name=str(kind))


def test_expert_loops_keep_their_experts_and_say_why() -> None:
    for kind in ("Einsum", "Fused"):
        graph = graph_of(kind)
        (reason,) = degree_reasons(graph, pp=1, dp=1, tp=2, ep=2)
        (listed,) = restricted(graph)  # by `autoshard trace`; of 8 experts
        assert listed == reason.message.replace("ep=2", "ep=8")
        assert reason.rule == "own experts" and "only ep=1 works" in reason.message
        up = next(op for _, op in graph.all_ops() if isinstance(op, ExpertsLinear))
        strategy = pattern_strategy(graph, Degrees(tp=2, etp=2), "megatron")
        assert not strategy_reasons(graph, strategy)
        assert strategy.choice(f"layers/{up.name}") is None  # every rank has all of the experts, whole


def test_heads_that_a_module_counts_itself_are_not_divided() -> None:
    # Block cuts q into 4 heads whatever its width: a share of it would make 4 heads of half the size
    core = next(op for _, op in graph_of("Einsum").all_ops() if isinstance(op, Attention))
    assert core.split is None and core.unsplit == "its forward does not work on a share of its heads"


@pytest.mark.wide
@pytest.mark.timeout(900)
def test_plain_modules_on_two_ranks() -> None:
    jobs = []
    for kind in KINDS:
        graph = graph_of(kind)
        degrees = [Degrees(tp=2, etp=2), Degrees(tp=2, ep=2), Degrees(dp=2, ep=2, batch=2)]
        legal = [d for d in degrees if not degree_reasons(graph, pp=1, dp=d.dp, tp=d.tp, ep=d.ep)]
        cases = [
            Case(name=f"{kind} {p} {d}", strategy=pattern_strategy(graph, d, p))
            for d in legal
            for p in ("megatron", "gather_out", "gather_in")
        ]
        cases += [Case(name=f"{kind} random {i}", strategy=s) for i, s in enumerate(random_strategies(graph, 2, 10, 3))]
        cases = [c for c in cases if not strategy_reasons(graph, c.strategy)]
        jobs.append(ModelJob(source=source(kind).to_dict(), graph=graph, cases=tuple(cases), dtypes=("float64",)))
    reports = validate(jobs, nproc=2, timeout_s=800)
    failed = [f"{r.name}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
    assert max(r.logits_max_rel_err for r in reports) < 1e-9
