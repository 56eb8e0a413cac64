"""How many tokens a config allows, and what each engine makes of more."""

import pytest

from autoshard.api.relaxations import relaxations
from autoshard.api.verdict import judge, make_request
from autoshard.engines import position_limit
from tests.graphs import GraphMaker


@pytest.mark.parametrize(
    ("config", "limit"),
    [
        ({"max_position_embeddings": 32768, "rope_scaling": None}, 32768),
        # YaRN names the length it started from: 4096 * 40
        (
            {
                "max_position_embeddings": 163840,
                "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096},
            },
            163840,
        ),
        ({"max_position_embeddings": 40960, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 163840),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
        # transformers 5 writes one entry a kind of layer
        ({"max_position_embeddings": 1024, "rope_parameters": {"full_attention": {"rope_type": "default"}}}, 1024),
        ({"n_positions": 2048, "max_sequence_length": 1024}, 1024),
        ({"hidden_size": 8}, 0),
    ],
)
def test_the_limit_by_hand(config: dict[str, object], limit: int) -> None:
    assert position_limit(config) == limit


@pytest.mark.parametrize(
    ("engine", "legal"), [("vllm", False), ("sglang", False), ("trtllm", False), ("transformers", True), (None, True)]
)
def test_more_than_the_limit_is_refused_or_noted(engine: str | None, legal: bool) -> None:
    graph = GraphMaker(hidden=512, heads=16, experts=8, intermediate=512).graph("mm")
    request = make_request(graph, "H100x1", engine=engine, context=5000, positions=4096)
    verdict = judge(request)
    assert verdict.legal is legal and verdict.fits
    found = [f for f in (*verdict.reasons, *verdict.notes) if f.rule == "context vs positions"]
    assert [f.values for f in found] == [{"context": 5000, "positions": 4096}]
    assert found[0].message.startswith("a context of 5,000 tokens is above the 4,096")
    if not legal:  # no degrees would do: the longest context that does is named
        assert {"change": "context", "value": 4096} in [
            {k: r[k] for k in ("change", "value")} for r in relaxations(request)
        ]
    within = judge(make_request(graph, "H100x1", engine=engine, context=4096, positions=4096))
    assert within.legal and not [f for f in within.notes if f.rule == "context vs positions"]
