"""FLOPs of the graph against torch's counter on real runs, for a prompt and for one decode step.

The reference runs experts one by one and attention over the full square: the counter misses grouped GEMMs and CPU SDPA.
Llama-4 is left out: its code runs every expert on every token, which no engine does.
"""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from autoshard.ir import Attention, Mixer
from autoshard.tracing import resolve
from tests.tracing.families import FAMILIES

BATCH, LENGTH = 2, 64


# Llama-4 runs every token through every expert; MiniMax takes only the cache it makes itself.
@pytest.mark.parametrize("name", sorted(set(FAMILIES) - {"llama4_text", "minimax"}))
def test_flops_equal_a_counter(name, family):
    from transformers import DynamicCache

    graph = family(name)
    model = resolve({"model_type": name, **FAMILIES[name]}).build("cpu", "float32", seed=0, experts="eager")
    model.set_attn_implementation("eager")
    ids = torch.randint(1, 256, (BATCH, LENGTH))
    cache = DynamicCache(config=model.config)
    with torch.no_grad():
        with FlopCounterMode(display=False) as prompt:
            model(ids, use_cache=True, cache=cache)
        with FlopCounterMode(display=False) as step:
            model(ids[:, :1], use_cache=True, cache=cache)
    mixers = [(b.repeat, op) for b, op in graph.all_ops() if isinstance(op, Mixer)]
    expected = graph.traced_flops(BATCH * LENGTH, LENGTH)
    # Some of a scan is not seen by the counter (triangular solves) and runs element by element for a single token.
    loose = BATCH * LENGTH * sum(n * op.traced_flops_per_token for n, op in mixers)
    assert 0.99 * (expected - loose) <= prompt.get_total_flops() <= 1.01 * expected
    expected = graph.traced_flops(BATCH, LENGTH + 1) - BATCH * sum(n * op.traced_flops_per_token for n, op in mixers)
    for block, op in graph.all_ops():
        if isinstance(op, Attention) and op.window is not None:  # the cache holds no more than the window
            keys = LENGTH + 1 - op.window
            expected -= block.repeat * 2 * BATCH * keys * op.heads.size * (op.qk_dim + op.v_dim)
        if op.name == "kv_b":  # the code expands the whole cached latent at every step
            expected += block.repeat * op.flops(BATCH * LENGTH)
    loose = sum(n * op.flops(BATCH) for n, op in mixers)
    assert 0.99 * expected <= step.get_total_flops() <= 1.01 * (expected + loose)
