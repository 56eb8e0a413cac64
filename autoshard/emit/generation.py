"""``generate()`` of an applied transformers model: every rank calls it, and all agree on every token.

The ranks of one dp rank see the same logits; before sampling they take over the random state of the first of them, so
that the tokens are those of the unsharded model under that rank's seed. With attention data parallelism every dp rank
has its own sequences, and goes on until the last of them is done, since experts are shared. With pipeline stages the
last stage broadcasts the logits of every step, which no plan lists: a serving engine sends back the token instead.
"""

import functools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from autoshard.emit.axes import PIPELINE
from autoshard.emit.pipeline import logits_everywhere
from autoshard.emit.steps import Axes
from autoshard.errors import InvalidInputError
from autoshard.sharding import Degrees


def emit_generate(model: nn.Module, degrees: Degrees, axes: Axes, mesh: DeviceMesh) -> None:
    """Give ``model`` a ``generate`` that keeps ranks in step, if it has one."""
    original = getattr(model, "generate", None)
    if original is None or degrees.num_devices == 1:
        return

    @functools.wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        if degrees.dp > 1:
            kwargs["synced_gpus"] = True
        if degrees.pp > 1:
            _refuse_reordering(kwargs, getattr(model, "generation_config", None))
        _share_random_state(degrees, axes, mesh)
        with logits_everywhere(model):
            return original(*args, **kwargs)

    model.generate = generate  # type: ignore[assignment]


def _refuse_reordering(kwargs: dict[str, Any], default: Any) -> None:
    """Raise InvalidInputError for what changes a cache from outside, which the stages' caches would not follow."""
    config = kwargs.get("generation_config") or default
    beams = kwargs.get("num_beams") or getattr(config, "num_beams", None) or 1
    if beams > 1:
        raise InvalidInputError(f"num_beams={beams}: beams reorder the cache, which a pipeline does not follow; use 1")
    for name in ("assistant_model", "prompt_lookup_num_tokens"):
        if kwargs.get(name) is not None or getattr(config, name, None) is not None:
            raise InvalidInputError(f"{name}: assisted decoding crops the cache, which a pipeline does not follow")


def _share_random_state(degrees: Degrees, axes: Axes, mesh: DeviceMesh) -> None:
    """Take over the random state of the first rank that has the same sequences: along tp, then along the stages."""
    cuda = mesh.device_type == "cuda"
    state = torch.cuda.get_rng_state() if cuda else torch.get_rng_state()
    held = state.to(mesh.device_type)
    groups = [axes["tp"].group, mesh.get_group(PIPELINE) if degrees.pp > 1 else None]
    for group in groups:
        if group is not None:
            dist.broadcast(held, src=dist.get_global_rank(group, 0), group=group)
    if cuda:
        torch.cuda.set_rng_state(held.cpu())
    else:
        torch.set_rng_state(held.cpu())
