"""Weights through `Plan`: applied with a checkpoint, saved and resumed."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from autoshard import Plan, autoshard
from autoshard._torch import FakeStore
from autoshard.errors import InvalidInputError
from tests.validate.sources import SOURCES


def test_apply_with_a_checkpoint_and_resume(tmp_path: Path) -> None:
    whole = SOURCES["mixtral"].build(device="cpu", dtype="float32", seed=3)
    whole.save_pretrained(tmp_path / "checkpoint")  # type: ignore[operator]
    plan: Plan = autoshard(whole, "H100x2", search="exact", fix="tp=2,ep=2,dp=1,pp=1", pin="q=0,k=0,v=0,o=1")
    dist.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
    try:
        mesh = plan.device_mesh("cpu")
        meta = SOURCES["mixtral"].build(dtype="float32")
        with pytest.raises(InvalidInputError, match="0 safetensors files"):
            plan.apply(meta, mesh, checkpoint=tmp_path)
        # The checkpoint is looked at first: the model was not sharded, and can still be.
        model = plan.apply(meta, mesh, checkpoint=tmp_path / "checkpoint")
        q = model.get_parameter("model.layers.1.self_attn.q_proj.weight")
        want = whole.get_parameter("model.layers.1.self_attn.q_proj.weight")
        assert torch.equal(q.to_local(), want[32:])  # type: ignore[attr-defined]  # 64 rows over 2 ranks
        assert not any(b.is_meta for b in model.buffers())
        written = plan.save_sharded(model, tmp_path / "shards")
        # Rank 1 writes what it alone holds: half of q, k, v, o, and its 4 of 8 experts, of 2 layers.
        layer = (64 * 64 + 2 * 32 * 64 + 64 * 64) // 2 + 4 * (192 * 64 + 64 * 96)
        named = plan.state_dict(model)
        assert named["model.layers.0.mlp.experts.gate_up_proj"].shape == (8, 2, 96, 64)
        others = sum(
            p.numel() // 2
            for n, p in whole.named_parameters()
            if (n.startswith("lm_head") or "embed" in n) and any(x.is_shard() for x in plan.placements[n])
        )
        assert written == 4 * (2 * layer + others)
    finally:
        dist.destroy_process_group()
