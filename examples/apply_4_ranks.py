"""A plan on real ranks: shard a small Mixtral over 4 processes and get the unsharded model's logits.

Run it with ``torchrun --nproc-per-node 4 examples/apply_4_ranks.py`` (gloo, no GPU needed).
"""

import copy
import tempfile

import torch
import torch.distributed as dist
from transformers import MixtralConfig, MixtralForCausalLM

from autoshard import Plan, autoshard

CONFIG = MixtralConfig(
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=8,
    num_key_value_heads=4,
    num_local_experts=8,
    num_experts_per_tok=2,
    vocab_size=512,
)


def shared_plan(model: torch.nn.Module) -> Plan:
    """Rank 0 plans and writes the file; every rank reads it."""
    path = [f"{tempfile.mkdtemp()}/plan.json"]
    if dist.get_rank() == 0:
        # Attention over 4 ranks, the experts over 2 groups of 2, and each matrix's choice as we say.
        autoshard(model, "H100x4", search="exact", fix="tp=4,ep=2", pin="q=0,k=0,v=0,o=1,experts_up=0").save(path[0])
    dist.broadcast_object_list(path)
    return Plan.load(path[0])


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)  # every rank builds the same weights
    model = MixtralForCausalLM(CONFIG).eval()
    plan = shared_plan(model)
    sharded = plan.apply(copy.deepcopy(model), plan.device_mesh("cpu"))
    tokens = torch.randint(CONFIG.vocab_size, (2, 16))
    with torch.no_grad():
        expected, got = model(tokens).logits, sharded(tokens).logits
    error = ((got - expected).abs().max() / expected.abs().max()).item()
    q = sharded.get_parameter("model.layers.0.self_attn.q_proj.weight")
    if dist.get_rank() == 0:
        print(plan)
        print(f"q_proj: {tuple(q.shape)} as {q.placements}, {tuple(q.to_local().shape)} on this rank")
        print(f"logits differ by {error:.1e} of the largest")
    dist.destroy_process_group()
    assert error < 1e-5, error


if __name__ == "__main__":
    main()
