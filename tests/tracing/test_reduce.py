import pytest
import torch
from autoshard_models import CATALOGUE

from autoshard.ir import Attention, ExpertsLinear, Linear
from autoshard.tracing import ConfigSource, resolve, trace_source

NAMES = ["mixtral-8x7b", "qwen3-30b-a3b", "olmoe-1b-7b", "llama-3.1-70b", "gpt-moe-7b"]


def _ops(graph):
    return [(b.name, [(op.name, op.kind, op.inputs) for op in b.ops]) for b in graph.components()]


@pytest.mark.parametrize("name", NAMES)
def test_reduced_models_keep_the_architecture_and_run(name, traced):
    source = resolve(CATALOGUE[name]).reduced(tp=4, ep=4, nproc=4)
    graph = trace_source(source)
    assert _ops(graph) == _ops(traced(name))
    assert graph.num_parameters < 1_500_000
    model = source.build("cpu", "float64", seed=0, experts="eager")
    with torch.no_grad():
        out = model(torch.randint(0, 64, (2, 12)))
    logits = getattr(out, "logits", out)
    assert logits.dtype == torch.float64
    assert logits.isfinite().all()


@pytest.mark.parametrize(("tp", "ep", "etp", "nproc"), [(4, 4, 1, 4), (2, 2, 2, 4), (3, 3, 1, 3), (1, 6, 1, 6)])
def test_every_shard_is_at_least_two_wide(tp, ep, etp, nproc):
    for name in ("qwen3-30b-a3b", "gpt-moe-7b"):
        graph = trace_source(resolve(CATALOGUE[name]).reduced(tp=tp, ep=ep, etp=etp, nproc=nproc))
        for _, op in graph.all_ops():
            if isinstance(op, (Linear, ExpertsLinear)):
                for size in (op.in_dim.size, op.out_dim.size // op.packed):
                    assert size % nproc == 0 and size // nproc >= 2
            if isinstance(op, ExpertsLinear):
                assert op.experts.size % ep == 0 and op.experts.size // ep >= 2
                assert op.top_k < op.experts.size
            if isinstance(op, Attention):
                assert op.heads.size % tp == 0 and op.kv_heads.size % tp == 0


def test_replicated_kv_heads_stay_replicated():
    # 4 kv heads on tp 8: each on two ranks. At tp 4 that leaves 2.
    source = resolve(CATALOGUE["qwen3-30b-a3b"]).reduced(tp=4, plan_tp=8)
    attention = trace_source(source).blocks[0].op("attention")
    assert attention.kv_heads.size == 2
    assert attention.heads.size % 4 == 0


def test_every_kind_of_layer_is_kept():
    config = {**CATALOGUE["qwen3-30b-a3b"].config, "mlp_only_layers": [0, 1, 9]}
    full = ConfigSource(name="m", class_name="Qwen3MoeForCausalLM", config=config)
    reduced = full.reduced()
    graph = trace_source(reduced)
    assert [b.name for b in graph.blocks] == ["dense_layers", "moe_layers"]
    assert graph.layers == (0, 0, 1)


def test_windows_ties_biases_and_top_k_are_kept():
    config = {
        **CATALOGUE["qwen3-30b-a3b"].config,
        "tie_word_embeddings": True,
        "attention_bias": True,
        "use_sliding_window": True,
        "sliding_window": 4096,
    }
    graph = trace_source(ConfigSource(name="m", class_name="Qwen3MoeForCausalLM", config=config).reduced())
    layer = graph.blocks[0]
    assert layer.op("attention").window == 8
    assert [p.role for p in layer.op("q").params] == ["weight", "bias"]
    assert layer.op("router").top_k == 8
    assert graph.epilogue.op("head").params[0].shared_with is not None


def test_a_factory_without_arguments_is_reduced_through_its_config(monkeypatch, tmp_path):
    (tmp_path / "mine_for_test.py").write_text(
        "from autoshard_models import CATALOGUE\n"
        "from autoshard_models.gpt_moe import build\n"
        "def make():\n    return build(**CATALOGUE['gpt-moe-7b'].config)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    reduced = resolve("mine_for_test:make").reduced()
    assert sum(p.numel() for p in reduced.build().parameters()) < 1_500_000
