"""What rules may ask about a model, a device and degrees: plain numbers and texts by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

import yaml

from autoshard.engines.quantisation import Scheme
from autoshard.hardware import Cluster
from autoshard.ir import Activation, Attention, Embedding, ExpertsLinear, LatentAttention, Linear, Mixer, OpGraph

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of a model: ``once`` about all of it, and a row for every distinct core and FFN."""

    once: Facts
    attention: tuple[Facts, ...]
    latent: tuple[Facts, ...]
    experts: tuple[Facts, ...]
    dense: tuple[Facts, ...]
    shared: tuple[Facts, ...]

    def rows(self, over: str) -> tuple[Facts, ...]:
        """The rows a rule is asked for; one empty row for ``once``."""
        return ({},) if over == "once" else tuple(getattr(self, over))


def _distinct(rows: list[dict[str, Any]]) -> tuple[Facts, ...]:
    return tuple({tuple(sorted(row.items())): row for row in rows}.values())


def _ffns(graph: OpGraph, *, shared: bool) -> list[dict[str, Any]]:
    """Intermediate widths of FFNs that every token runs, in blocks with routed experts (shared) or without (dense)."""
    found = []
    for block in graph.blocks:
        routed = any(isinstance(op, ExpertsLinear) for op in block.ops)
        acts = {op.name for op in block.ops if isinstance(op, Activation) and not op.routed}
        downs = [op for op in block.ops if isinstance(op, Linear) and set(op.inputs) & acts]
        if routed is shared:
            found += [{"intermediate": op.in_dim.size} for op in downs]
    return found


def model_facts(graph: OpGraph) -> ModelFacts:
    """Facts of a traced model."""
    ops = [op for _, op in graph.all_ops()]
    ups = [op for op in ops if isinstance(op, ExpertsLinear) and op.stage == "up"]
    embeds = [op for op in ops if isinstance(op, Embedding)]
    hidden = embeds[0].hidden.size if embeds else 0
    softmax = [op for op in ops if isinstance(op, Attention)]
    latent = [op for op in ops if isinstance(op, LatentAttention)]
    shared = _distinct(_ffns(graph, shared=True))
    owners = {p.fqn for op in embeds for p in op.params}
    heads = [op for op in ops if isinstance(op, Linear) and op.is_head]
    once = {
        "layers": len(graph.layers),
        "hidden": hidden,
        "vocab": max((op.vocab.size for op in embeds), default=1),
        "experts": max((op.experts.size for op in ups), default=0),
        "top_k": max((op.top_k for op in ups), default=0),
        "shared": len(shared),
        "latent": len(latent),
        "recurrent": sum(isinstance(op, Mixer) for op in ops),
        "tied": int(any(p.shared_with in owners for op in heads for p in op.params)),
    }
    experts = [
        {
            "experts": op.experts.size,
            "intermediate": op.out_dim.size // op.packed,
            "expert_hidden": op.in_dim.size,
            "top_k": op.top_k,
        }
        for op in ups
    ]
    return ModelFacts(
        once=once,
        attention=_distinct([{"heads": op.heads.size, "kv_heads": op.kv_heads.size} for op in softmax]),
        latent=_distinct([{"heads": op.heads.size} for op in latent]),
        experts=_distinct(experts),
        dense=_distinct(_ffns(graph, shared=False)),
        shared=shared,
    )


@lru_cache(maxsize=1)
def _known_devices() -> Mapping[str, Facts]:
    text = (resources.files("autoshard.engines") / "data" / "devices.yaml").read_text(encoding="utf-8")
    found: Mapping[str, Facts] = yaml.safe_load(text)
    return found


def device_facts(cluster: Cluster) -> Facts:
    """What rules ask about devices: ``native_fp8``, ``native_fp4``, memory, counts.

    A device that computes in fp8 (its file says so) is native in it; none is taken to be native in fp4 unless listed.
    """
    device = cluster.device
    listed = _known_devices().get(device.name, {})
    return {
        "device": device.name,
        "native_fp8": int(listed.get("native_fp8", "float8_e4m3fn" in device.flops_per_s)),
        "native_fp4": int(listed.get("native_fp4", 0)),
        "memory_gib": device.memory_bytes / 2**30,
        "devices": cluster.num_devices,
        "per_node": cluster.devices_per_node,
    }


def scheme_facts(scheme: Scheme) -> Facts:
    """What rules ask about the quantisation."""
    return {"quant": scheme.name, "bits": scheme.bits, "block": scheme.block, "scale_group": scheme.group}


def degree_facts(*, pp: int, dp: int, tp: int, ep: int, etp: int) -> Facts:
    """Degrees, ``group`` = dp * tp, ``world`` = pp * dp * tp."""
    return {"pp": pp, "dp": dp, "tp": tp, "ep": ep, "etp": etp, "group": dp * tp, "world": pp * dp * tp}
