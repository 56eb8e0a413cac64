"""A token table on its shard: a rank with part of the vocabulary looks up what it has and adds zeros for the rest."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from autoshard.emit.local import local_parameters, replace_forward
from autoshard.emit.steps import Axes, run_steps
from autoshard.sharding import ResolvedOp


def emit_embedding(module: nn.Module, item: ResolvedOp, axes: Axes) -> None:
    """Run ``module`` (weight (vocab, hidden)) under ``item``; ids are whole on every rank."""
    option = item.option
    assert option is not None
    split = next((s.axis for s in option.params[0] if s.dim == 0), None)

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(ids: Tensor) -> Tensor:
            with local_parameters(module) as local:
                if split is None or axes[split].size == 1:
                    return run_steps(forward(ids), item.exit, axes)
                num_rows = local["weight"].shape[0]
                ids = ids - axes[split].coordinate * num_rows
                absent = (ids < 0) | (ids >= num_rows)
                # The padding id only matters to gradients, and may lie outside of this rank's rows.
                padding, module.padding_idx = getattr(module, "padding_idx", None), None  # type: ignore[assignment]
                try:
                    out = forward(ids.clamp(0, num_rows - 1))
                finally:
                    module.padding_idx = padding  # type: ignore[assignment]
                return run_steps(out.masked_fill(absent[..., None], 0), item.exit, axes)

        return run

    replace_forward(module, make)
