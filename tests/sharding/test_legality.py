from dataclasses import replace

import pytest

from autoshard.sharding import DISPATCH, RESIDUAL, Degrees, Strategy, degree_reasons, strategy_reasons
from autoshard.sharding.space import split_tokens_reason
from tests.graphs import GraphMaker


def rules(*, uneven: bool = False, **degrees: int) -> list[str]:
    graph = GraphMaker(heads=12, kv_heads=4).graph("mm")
    return [r.rule for r in degree_reasons(graph, uneven=uneven, **degrees)]


def test_rules_are_named() -> None:
    assert rules(pp=1, dp=1, tp=4, ep=1) == []
    assert rules(pp=1, dp=1, tp=12, ep=1) == []
    assert rules(pp=1, dp=1, tp=8, ep=1) == ["heads % tp"]
    assert rules(pp=1, dp=1, tp=6, ep=1) == ["kv_heads vs tp"]
    assert rules(pp=3, dp=1, tp=1, ep=1) == ["layers vs pp"]
    assert rules(pp=1, dp=3, tp=1, ep=3) == []  # 8 experts: 3, 3, 2
    assert rules(pp=1, dp=5, tp=1, ep=5) == ["experts vs ep"]  # 2, 2, 2, 2 and none
    assert rules(pp=1, dp=1, tp=5, ep=1, uneven=True) == ["heads % tp"]  # 4 kv heads on 5 ranks
    assert rules(pp=1, dp=1, tp=8, ep=1, uneven=True) == []  # 4 kv heads with 3 heads each: 2 ranks have 2 heads each


def test_the_nearest_that_works_is_named() -> None:
    (reason,) = degree_reasons(GraphMaker(heads=32, kv_heads=8).graph("m"), pp=1, dp=1, tp=24, ep=1)
    assert reason.message == "tp=24 does not divide 32 attention heads; nearest tp that does: 16"


def test_layers_that_return_more_are_not_staged() -> None:
    graph = GraphMaker().graph("mm")
    more = replace(graph, blocks=tuple(replace(b, returns_more=True) for b in graph.blocks))
    assert graph.structural_hash() != more.structural_hash()
    (reason,) = degree_reasons(more, pp=2, dp=1, tp=1, ep=1)
    assert reason.rule == "pipeline" and "return more than the residual stream" in reason.message
    assert not degree_reasons(more, pp=1, dp=1, tp=1, ep=1)


def test_choices_that_are_not_offered_are_named() -> None:
    graph = GraphMaker(intermediate=90).graph("m")
    strategy = Strategy(degrees=Degrees(tp=4, etp=4), choices=(("layers/experts_down", 1), ("epilogue/final_norm", 0)))
    messages = [r.message for r in strategy_reasons(graph, strategy)]
    assert "choice 1 of layers/experts_down: intermediate 90 does not divide by etp=4" in messages
    assert "choice 0 of epilogue/final_norm: the residual is replicated" in messages
    assert not strategy_reasons(graph, Strategy(degrees=Degrees(tp=4, etp=4), choices=((RESIDUAL, 0),)))


@pytest.mark.parametrize(
    ("degrees", "key", "choice", "why"),
    [
        (Degrees(tp=4, etp=4), DISPATCH, 0, "same as gathered at ep=1"),
        (Degrees(), RESIDUAL, 1, "same as replicated at tp=1"),
        (Degrees(pp=2, tp=2, etp=2), RESIDUAL, 1, "tokens stay whole between pp=2 stages"),
        (Degrees(tp=2, etp=2), RESIDUAL, 2, "there is no such choice"),
    ],
)
def test_choices_of_the_model_that_are_not_offered_are_named(degrees: Degrees, key: str, choice: int, why: str) -> None:
    (reason,) = strategy_reasons(GraphMaker().graph("mm"), Strategy(degrees=degrees, choices=((key, choice),)))
    assert reason.message == f"choice {choice} of {key}: {why}"


def test_tokens_are_split_only_where_norms_stand_before_everything() -> None:
    graph = GraphMaker().graph("m")
    assert split_tokens_reason(graph) is None
    ops = tuple(replace(op, inputs=("input",)) if op.name == "q" else op for op in graph.blocks[0].ops)
    bare = replace(graph, blocks=(replace(graph.blocks[0], ops=ops),))
    assert split_tokens_reason(bare) == "layers/q reads it without a norm in between"
    flat = replace(graph, blocks=(replace(graph.blocks[0], instances=("model.layers.0.mlp",)),))
    assert split_tokens_reason(flat) == "the experts of layers have no module around them"


def test_an_unknown_op_is_named() -> None:
    graph = GraphMaker().graph("m")
    (reason,) = strategy_reasons(graph, Strategy(degrees=Degrees(), choices=(("layers/nope", 0),)))
    assert "no op 'layers/nope'" in reason.message
