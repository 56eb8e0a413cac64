"""Degrees and choices as people write them."""

import pytest

from autoshard.api.pins import parse_fix, parse_pin, parse_stages, pins_for
from autoshard.errors import InvalidInputError
from autoshard.ir import OpGraph


def test_text_and_mappings_mean_the_same() -> None:
    assert parse_fix("tp=8, ep=4") == parse_fix({"tp": 8, "ep": 4}) == {"tp": 8, "ep": 4}
    assert parse_pin("q=0,layers/o=1,k=None,v=-") == {"q": 0, "layers/o": 1, "k": None, "v": None}
    assert parse_pin({"q": 0, "k": None}) == {"q": 0, "k": None}
    assert (parse_fix(None), parse_pin(None)) == ({}, {})


def test_a_bare_name_is_the_op_in_every_block(graph: OpGraph) -> None:
    pinned = pins_for(graph, {"q": 0, "head": 1, "residual": 0, "layers/o": 1})
    assert pinned == {"layers/q": 0, "epilogue/head": 1, "model/residual": 0, "layers/o": 1}


def test_stages_fix_their_number() -> None:
    fixed: dict[str, int] = {}
    assert parse_stages("20, 12", fixed) == parse_stages((20, 12), fixed) == (20, 12) and fixed == {"pp": 2}
    assert parse_stages(None, {}) == ()
    for wrong in ("20,0", "20;12", "", (20, -12), "20,12,"):
        with pytest.raises(InvalidInputError, match="written as 20,12"):
            parse_stages(wrong, {})
    with pytest.raises(InvalidInputError, match="are 2 stages, pp=4 is fixed"):
        parse_stages("20,12", {"pp": 4})


@pytest.mark.parametrize("wrong", [{"tp": True}, {"tp": 1.5}, {"tp": -1}, "tp=eight", "=3", {"world": 8}])
def test_wrong_degrees(wrong: object) -> None:
    with pytest.raises(InvalidInputError):
        parse_fix(wrong)  # type: ignore[arg-type]
