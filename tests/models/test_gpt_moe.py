import pytest
import torch
from autoshard_models.gpt_moe import GPTMoEConfig, KVCache, build

SIZES = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 48,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "vocab_size": 64,
}


def _model(dtype=torch.float64, **changes):
    torch.manual_seed(0)
    return build(**{**SIZES, **changes}).to(dtype).eval()


def test_cached_decode_equals_one_pass():
    model, ids = _model(), torch.randint(0, 64, (2, 10))
    with torch.no_grad():
        whole = model(ids)
        cache = KVCache()
        pieces = [model(ids[:, :6], cache), *(model(ids[:, i : i + 1], cache) for i in range(6, 10))]
    assert cache.num_tokens == 10
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, rtol=0, atol=1e-12)


def test_attention_runs_on_a_tensor_parallel_shard_of_itself():
    model = _model()
    attention = model.layers[0].attn
    x = torch.randn(2, 5, 32, dtype=torch.float64)
    cos, sin = model.rotary(torch.arange(5), x.dtype)
    mask = torch.ones(5, 5, dtype=torch.bool).tril()
    with torch.no_grad():
        whole = attention(x, cos, sin, mask)
        full = {n: p.clone() for n, p in attention.named_parameters()}
        partial = torch.zeros_like(whole)
        for rank in range(2):
            for name, weight in full.items():
                dim = 1 if name.startswith("o_proj") else 0
                attention.get_submodule(name.split(".")[0]).weight = torch.nn.Parameter(weight.chunk(2, dim=dim)[rank])
            partial += attention(x, cos, sin, mask)
    torch.testing.assert_close(partial, whole, rtol=0, atol=1e-12)


def test_experts_equal_a_loop_over_chosen_experts():
    model = _model()
    moe = model.layers[0].moe
    x = torch.randn(7, 32, dtype=torch.float64)
    with torch.no_grad():
        weights, index = moe.router(x)
        expected = torch.zeros_like(x)
        for t in range(7):
            for weight, e in zip(weights[t], index[t], strict=True):
                inner = torch.nn.functional.gelu(moe.experts.up_proj[e] @ x[t])
                expected[t] += weight * (moe.experts.down_proj[e] @ inner)
        torch.testing.assert_close(moe.experts(x, index, weights), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(weights.sum(-1), torch.ones(7, dtype=torch.float64))


def test_ties_share_the_embedding():
    model = _model(tie_word_embeddings=True)
    assert model.lm_head.weight is model.embed.weight


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "multiple of num_key_value_heads"),
        ({"num_experts_per_tok": 5}, "between 1 and num_experts"),
        ({"head_dim": 7}, "even"),
        ({"hidden_size": 0}, "at least 1"),
    ],
)
def test_impossible_sizes_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        GPTMoEConfig(**{**SIZES, **changes})
