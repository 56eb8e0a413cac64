from autoshard.sharding import Degrees, degree_reasons, strategy_reasons
from autoshard.sharding.strategy import RESIDUAL, Strategy
from tests.graphs import GraphMaker


def rules(**degrees: int) -> list[str]:
    return [r.rule for r in degree_reasons(GraphMaker(heads=12, kv_heads=4).graph("mm"), **degrees)]


def test_rules_are_named() -> None:
    assert rules(pp=1, dp=1, tp=4, ep=1) == []
    assert rules(pp=1, dp=1, tp=12, ep=1) == []
    assert rules(pp=1, dp=1, tp=8, ep=1) == ["heads % tp"]
    assert rules(pp=1, dp=1, tp=6, ep=1) == ["kv_heads vs tp"]
    assert rules(pp=3, dp=1, tp=1, ep=1) == ["layers vs pp"]
    assert rules(pp=1, dp=3, tp=1, ep=3) == ["experts % ep"]


def test_the_nearest_that_works_is_named() -> None:
    (reason,) = degree_reasons(GraphMaker(heads=32, kv_heads=8).graph("m"), pp=1, dp=1, tp=24, ep=1)
    assert reason.message == "tp=24 does not divide 32 attention heads; nearest tp that does: 16"


def test_choices_that_are_not_offered_are_named() -> None:
    graph = GraphMaker(vocab=250).graph("m")
    strategy = Strategy(degrees=Degrees(tp=4, etp=4), choices=(("prologue/embed", 0), ("epilogue/final_norm", 0)))
    messages = [r.message for r in strategy_reasons(graph, strategy)]
    assert "choice 0 of prologue/embed: vocab 250 does not divide by tp=4" in messages
    assert "choice 0 of epilogue/final_norm: the residual is replicated" in messages
    assert not strategy_reasons(graph, Strategy(degrees=Degrees(tp=4, etp=4), choices=((RESIDUAL, 0),)))


def test_an_unknown_op_is_named() -> None:
    graph = GraphMaker().graph("m")
    (reason,) = strategy_reasons(graph, Strategy(degrees=Degrees(), choices=(("layers/nope", 0),)))
    assert "no op 'layers/nope'" in reason.message
