"""Plans on real ranks: a small Mixtral sharded over 4 processes, in one stage and in two, against the unsharded model.

Run it with ``torchrun --nproc-per-node 4 examples/run_4_ranks.py`` (gloo, no GPU needed).
"""

import copy
import tempfile

import torch
import torch.distributed as dist
from transformers import DynamicCache, MixtralConfig, MixtralForCausalLM

from autoshard import Plan, autoshard

CONFIG = MixtralConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_local_experts=8,
    num_experts_per_tok=2,
    vocab_size=512,
)
# Attention over 4 ranks, the experts over 2 groups of 2, and each matrix's choice as we say.
ONE_STAGE = {"fix": "tp=4,ep=2", "pin": "q=0,k=0,v=0,o=1,experts_up=0"}
# The first layer on 2 ranks, the other two on the other 2.
TWO_STAGES = {"fix": "tp=2,ep=2", "stages": "1,2"}


def shared_plan(model: torch.nn.Module, **wishes: str) -> Plan:
    """Rank 0 plans and writes the file; every rank reads it."""
    path = [f"{tempfile.mkdtemp()}/plan.json"]
    if dist.get_rank() == 0:
        autoshard(model, "H100x4", search="exact", **wishes).save(path[0])
    dist.broadcast_object_list(path)
    return Plan.load(path[0])


def difference(got: torch.Tensor | None, expected: torch.Tensor) -> float:
    """Largest difference of logits, relative to the largest; 0 on a stage that makes none."""
    return 0.0 if got is None else ((got - expected).abs().max() / expected.abs().max()).item()


def run(model: MixtralForCausalLM, **wishes: str) -> None:
    plan = shared_plan(model, **wishes)
    sharded = plan.apply(copy.deepcopy(model), plan.device_mesh("cpu"))
    prompt = torch.randint(CONFIG.vocab_size, (2, 16), generator=torch.Generator().manual_seed(1))
    cache, expected_cache = DynamicCache(config=CONFIG), DynamicCache(config=CONFIG)
    error = 0.0
    with torch.no_grad():
        for tokens in (prompt, prompt[:, -1:]):  # the prompt, then a cached decode step
            expected = model(tokens, cache=expected_cache).logits
            error = max(error, difference(sharded(tokens, cache=cache).logits, expected))
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 0, "attention_mask": torch.ones_like(prompt)}
    same = torch.equal(sharded.generate(prompt, **options), model.generate(prompt, **options))
    held = sum(p.to_local().numel() for p in sharded.parameters())
    if dist.get_rank() in (0, 3):
        whole = sum(p.numel() for p in model.parameters())
        layers = [i for i, layer in enumerate(sharded.model.layers) if list(layer.parameters())]
        print(f"{plan}: rank {dist.get_rank()} has layers {layers}, {held / whole:.0%} of the parameters")
        print(f"rank {dist.get_rank()}: logits differ by {error:.1e} of the largest, generated tokens equal: {same}")
    assert error < 1e-5 and same, (error, same)


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # every rank builds the same weights
    model = MixtralForCausalLM(CONFIG).eval()
    run(model, **ONE_STAGE)
    run(model, **TWO_STAGES)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
