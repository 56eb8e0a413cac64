"""What the graph says is kept for a sequence, against the tensors that the model's own cache holds."""

import pytest
import torch
from torch import nn

from autoshard.api.describe_model import describe_graph
from autoshard.ir import Attention
from autoshard.tracing import resolve, trace
from tests.tracing.families import FAMILIES, marked

SHORT, LONG = 95, 191
"""Beyond every window, and one short of a multiple of every pooling: buffers of tokens yet to be pooled are full."""


def _tensors(value, seen):
    """Every tensor below ``value``, once; its batch dim is the first."""
    if isinstance(value, torch.Tensor):
        yield from () if id(value) in seen or value.ndim < 2 else (value,)
        seen.add(id(value))
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item, seen)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item, seen)


def _cached_bytes(model, length):
    """Bytes that the cache of one sequence holds after ``length`` tokens, in a real run."""
    from transformers import DynamicCache

    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        model(torch.ones(1, length, dtype=torch.long), use_cache=True, cache=cache)
    tensors = [t for layer in cache.layers for t in _tensors(vars(layer), set())]
    return sum(t.numel() * t.element_size() for t in tensors)


# MiniMax takes only the cache it makes itself.
@pytest.mark.parametrize("name", marked(set(FAMILIES) - {"minimax"}))
def test_a_cache_grows_as_the_graph_says(name, family):
    graph = family(name)
    model = resolve({"model_type": name, **FAMILIES[name]}).build("cpu", "bfloat16", seed=0)
    before, after = _cached_bytes(model, SHORT), _cached_bytes(model, LONG)
    assert after - before == (LONG - SHORT) * graph.kv_growth(SHORT)
    cores = [op for _, op in graph.all_ops() if isinstance(op, Attention)]
    if all(op.window is None and op.pooled is None for op in cores):
        assert before == SHORT * graph.kv_bytes_per_token() + graph.state_bytes_per_sequence()
    assert graph.opaque_state_share() == 0


class _Strange(nn.Module):
    """A layer that keeps a state of 3 x 5 elements and a row of 7 a token, and uses its parameter in an odd way."""

    def __init__(self, index, *, keeps):
        super().__init__()
        self.strange, self.index, self.keeps = nn.Parameter(torch.ones(32)), index, keeps

    def forward(self, x, cache):
        if cache is not None and self.keeps:
            layer = cache.layers[self.index]
            rows, before = x[..., :7], getattr(layer, "rows", None)
            layer.memory, layer.rows = x.new_zeros(x.shape[0], 3, 5), rows
            if before is not None:
                layer.rows = torch.cat([before, rows], 1)
        return x + x * self.strange.sin()


class _Output(dict):
    cache = None


class _Keeper(nn.Module):
    """Four such layers in a model whose cache is transformers' own; only the second pair keeps anything."""

    def __init__(self):
        from transformers import Qwen2Config

        super().__init__()
        self.config = Qwen2Config(num_hidden_layers=4)
        self.table = nn.Embedding(50, 32, dtype=torch.bfloat16)
        self.layers = nn.ModuleList(_Strange(i, keeps=i > 1).bfloat16() for i in range(4))
        self.head = nn.Linear(32, 50, bias=False, dtype=torch.bfloat16)

    def forward(self, input_ids, cache=None, use_cache=False):  # noqa: ARG002
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x, cache)
        return self.head(x)


def test_state_that_no_op_is_known_to_keep_is_opaque_and_counted():
    graph = trace(_Keeper(), name="m")
    first, second = graph.blocks
    assert not [op for op in first.ops if op.kind == "opaque" and (op.state_bytes or op.cache_bytes_per_token)]
    keeps = [op for op in second.ops if op.kind == "opaque"]
    # Two layers; 3 x 5 elements a sequence and 7 a token, in bfloat16.
    assert [(op.state_bytes, op.cache_bytes_per_token) for op in keeps] == [(30.0, 14.0)]
    assert graph.kv_bytes_per_token() == 2 * 14 and graph.state_bytes_per_sequence() == 2 * 30
    assert graph.opaque_state_share() == 1
    shown = describe_graph(graph)
    assert shown["opaque_state_share"] == 1
    assert [(o["state_bytes"], o["cache_bytes_per_token"]) for o in shown["opaque"] if o["state_bytes"]] == [(60, 28)]
