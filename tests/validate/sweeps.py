"""Every combination of choices of attention matrices and of the FFN, for a model with one layer of every kind."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from autoshard.ir import ExpertsLinear, Linear, OpGraph
from autoshard.sharding import RESIDUAL, Choice, Degrees, Strategy, mesh_of, strategy_reasons
from autoshard.sharding.legality import axis_sizes, choice_key, option_illegal
from autoshard.sharding.patterns import role_of
from autoshard.sharding.space import free_ops, options
from autoshard.tracing import ConfigSource, FactorySource, ModelSource, resolve
from tests.tracing.families import FAMILIES
from tests.validate.sources import SOURCES

CHOICES: tuple[Choice, ...] = (0, 1, None)
_ONE_OF_EACH: dict[str, dict[str, object]] = {
    "gpt_oss": {"num_hidden_layers": 2},
    "deepseek_v3": {"num_hidden_layers": 2, "qk_nope_head_dim": 16},
    "qwen3_next": {"num_hidden_layers": 2, "layer_types": ["linear_attention", "full_attention"]},
    "qwen3-moe": {"num_hidden_layers": 1, "mlp_only_layers": []},
}
SWEPT = ("mixtral", "qwen3-moe", "olmoe", "gpt_oss", "deepseek_v3", "qwen3_next", "gpt-moe")
"""Families, under the names of `sources` or of the tracer's families."""


def swept_source(name: str) -> ModelSource:
    """The model that is swept: one layer of every kind."""
    changed = _ONE_OF_EACH.get(name, {"num_hidden_layers": 1})
    if name not in SOURCES:
        return resolve({"model_type": name, **FAMILIES[name], **changed})
    source = SOURCES[name]
    if isinstance(source, FactorySource):
        return replace(source, kwargs={**source.kwargs, **changed})
    assert isinstance(source, ConfigSource)
    return replace(source, config={**source.config, **changed})


def axes_of_sweep(graph: OpGraph) -> dict[str, list[str]]:
    """What is chosen together: each attention matrix by name in all blocks, and the FFN's in and out.

    The two projections that a latent attention makes of the hidden state are one axis.
    """
    found: dict[str, list[str]] = {}
    for block in graph.components():
        for op in free_ops(block) if block in graph.blocks else ():
            key = choice_key(graph, block, op)
            ffn = isinstance(op, ExpertsLinear) or (isinstance(op, Linear) and not _FFN.isdisjoint(op.fqn.split(".")))
            if ffn:
                found.setdefault(f"ffn_{role_of(block, op)}", []).append(key)
            elif isinstance(op, Linear):
                found.setdefault({"q_a": "a", "kv_a": "a"}.get(op.name, op.name), []).append(key)
    return found


_FFN = frozenset({"mlp", "moe", "ffn", "feed_forward", "block_sparse_moe"})


def sweep(graph: OpGraph, tp: int) -> Iterator[tuple[str, Strategy]]:
    """All combinations of what is offered, each with its name; what is not swept turns over with the number.

    A combination that is offered for some matrices of an axis only takes "replicated" for the others.
    """
    degrees = Degrees(tp=tp, etp=tp)
    sizes = axis_sizes(mesh_of(graph, degrees))
    axes = axes_of_sweep(graph)
    replicated = Strategy(degrees=degrees, choices=())
    legal: dict[str, set[Choice]] = {}
    for block in graph.components():
        for op in free_ops(block):
            offered = {
                o.choice for o in options(block, op) if option_illegal(o, sizes, replicated.residual, op) is None
            }
            legal[choice_key(graph, block, op)] = offered
    swept = {key for keys in axes.values() for key in keys}
    axis_choices = [[c for c in CHOICES if any(c in legal[k] for k in keys)] for keys in axes.values()]
    for number, combination in enumerate(product(*axis_choices)):
        chosen: dict[str, Choice] = {RESIDUAL: None}
        for (_, keys), choice in zip(axes.items(), combination, strict=True):
            chosen |= {key: choice if choice in legal[key] else None for key in keys}
        for key, offered in legal.items():
            if key not in swept:
                inside = key.endswith(("attention", "act"))
                turned = sorted(offered, key=str)[number % len(offered)]
                chosen[key] = (0 if 0 in offered else None) if inside else turned
        strategy = Strategy(degrees=degrees, choices=tuple(chosen.items()))
        assert not strategy_reasons(graph, strategy)
        name = " ".join(f"{axis}={'-' if c is None else c}" for axis, c in zip(axes, combination, strict=True))
        yield name, strategy
