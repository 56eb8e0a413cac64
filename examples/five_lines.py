"""Five lines: a model that needs no memory, a cluster we do not have, a plan for every parameter."""

import torch
from transformers import MixtralConfig, MixtralForCausalLM

from autoshard import H100x64, Workload, autoshard

with torch.device("meta"):
    model = MixtralForCausalLM(MixtralConfig())
plan = autoshard(model, cluster=H100x64, workload=Workload(phase="decode", context=16384, tpot_ms=20))
for name in ("model.layers.0.self_attn.q_proj.weight", "model.layers.0.mlp.experts.down_proj"):
    print(name, plan.placements[name], "on", plan.mesh_for(name))

assert plan.placements.keys() == dict(model.named_parameters()).keys(), "every parameter, exactly once"
print(plan)
