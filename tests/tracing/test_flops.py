"""FLOPs of the graph against torch's counter on real runs, for a prompt and for one decode step, within 1 %.

The reference runs experts one by one and attention over the full square: the counter misses grouped GEMMs and CPU SDPA.
Llama-4's code runs every expert on every token, which no engine does: its experts are compared as contractions of all.
Recurrent mixers are compared in full over a prompt of the traced length (projections, convolution, and every product
of matrices of the chunked scan). In a decode step their code is another, which the graph does not hold: a recurrence of
one token, of which the counter sees the products written as matrices. That is said by hand below.
"""

import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from autoshard.ir import Attention, ExpertsLinear, Mixer
from autoshard.tracing import resolve
from tests.tracing.families import FAMILIES, marked

BATCH, LENGTH = 2, 64
OWN_CACHE = {"minimax"}
"""Models that take only the cache they make themselves."""
STEP_FLOPS = {"jamba": 2, "nemotron_h": 2, "minimax": 4}
"""FLOPs of a decode step per element of state that the counter sees: 2 where the read-out is a product of matrices, 4
where the update is one as well, none where both are element-wise (gated delta rule)."""


def _solved(a_shape, b_shape, **_):
    """FLOPs of a triangular solve counted as the product with the inverse, which is what a gated delta rule exports."""
    *outer, n, _ = a_shape
    return 2 * math.prod(outer) * n * n * b_shape[-1]


SOLVES = {torch.ops.aten.linalg_solve_triangular: _solved}
"""Not in the counter's own list."""


def _counted(name):
    """FLOPs that the counter sees in (a prompt, a step after it)."""
    from transformers import DynamicCache

    model = resolve({"model_type": name, **FAMILIES[name]}).build("cpu", "float32", seed=0, experts="eager")
    model.set_attn_implementation("eager")
    model.requires_grad_(False)  # DBRX slices its experts under no_grad, which the counter's module tracker trips over
    ids = torch.randint(1, 256, (BATCH, LENGTH))
    cache = None if name in OWN_CACHE else DynamicCache(config=model.config)
    with torch.no_grad():
        with FlopCounterMode(display=False, custom_mapping=SOLVES) as prompt:
            out = model(ids, use_cache=True, cache=cache)
        with FlopCounterMode(display=False) as step:
            model(ids[:, :1], use_cache=True, cache=out.cache if cache is None else cache)
    return prompt.get_total_flops(), step.get_total_flops()


def _unchosen(graph, name, tokens):
    """FLOPs on experts that a token did not choose, where the code runs all."""
    if name != "llama4_text":
        return 0.0
    banks = [(b.repeat, op) for b, op in graph.all_ops() if isinstance(op, ExpertsLinear)]
    return sum(n * op.flops(tokens) * (op.experts.size / op.top_k - 1) for n, op in banks)


@pytest.mark.parametrize("name", marked(FAMILIES))
def test_flops_equal_a_counter(name, family):
    graph = family(name)
    prompt, step = _counted(name)
    tokens = BATCH * LENGTH
    assert prompt == pytest.approx(graph.traced_flops(tokens, LENGTH) + _unchosen(graph, name, tokens), rel=0.01)
    expected = graph.traced_flops(BATCH, LENGTH + 1) + _unchosen(graph, name, BATCH)
    for block, op in graph.all_ops():
        if isinstance(op, Attention) and op.window is not None:  # the cache holds no more than the window
            keys = LENGTH + 1 - op.window
            expected -= block.repeat * 2 * BATCH * keys * op.heads.size * (op.qk_dim + op.v_dim)
        if op.name.startswith("kv_b"):  # the code expands the whole cached latent at every step
            expected += block.repeat * op.flops(BATCH * LENGTH)
        if isinstance(op, Mixer):  # the convolution gives two positions, of which the last is kept
            recurrence = STEP_FLOPS.get(name, 0) * op.state_elements + 2 * op.convolution_flops_per_token
            expected += block.repeat * BATCH * (recurrence - op.traced_flops_per_token)
    assert step == pytest.approx(expected, rel=0.01)
