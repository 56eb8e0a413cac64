"""The plain models of `tests.tracing.plain_models`, with the interface that ranks feed: ``model(ids, cache=...)``.

They keep no cache: a decode step is a prompt of one token, in the sharded model as in the unsharded one.
"""

from typing import Any

from torch import Tensor, nn

from tests.tracing import plain_models


class KVCache:
    pass


def build(experts: str | None = None, **kwargs: Any) -> nn.Module:
    """A decoder with experts of the named kind; without a name, layers around ``nn.MultiheadAttention``."""
    base: Any = plain_models.PlainMultihead if experts is None else plain_models.Plain

    class Ranked(base):  # type: ignore[misc]
        config = None

        def forward(self, input_ids: Tensor, cache: KVCache | None = None) -> Tensor:  # noqa: ARG002
            return super().forward(input_ids)

    Ranked.__module__ = __name__
    return Ranked(**kwargs) if experts is None else Ranked(getattr(plain_models, experts), layers=2)
