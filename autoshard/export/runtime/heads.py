"""Modules that run on their heads: they are told smaller counts, and use their rows of their own parameters."""

import copy
from typing import Any

from torch import Tensor, nn

from autoshard.export.runtime.moves import Axes, change_first, local_shards, own_rows


def divide_count(module: nn.Module, path: str, ranks: int) -> None:
    """Divide a number that a module keeps; a config on the way becomes one of the module's own."""
    *owners, name = path.split(".")
    target: Any = module
    for owner in owners:
        inner = getattr(target, owner)
        if not isinstance(inner, nn.Module) and not vars(target).get("_own_" + owner):
            inner = copy.copy(inner)
            setattr(target, owner, inner)
            setattr(target, "_own_" + owner, True)
        target = inner
    setattr(target, name, getattr(target, name) // ranks)


def heads(
    model: nn.Module,
    at: str,
    axes: Axes,
    owners: tuple[str, ...] = (),
    rows: dict[str, tuple[int, tuple[int, ...]]] | None = None,
    counts: tuple[str, ...] = (),
    readers: tuple[str, ...] = (),
    width: int = 0,
) -> None:
    """A module that uses the parameters of ``owners`` itself, on its share of the heads.

    ``rows`` are parameters that are whole, with the dim and the parts of which a rank uses its share. ``readers`` are
    the projections of a module that reads a width off its input: it is given an input of that ``width``, they the real
    one.
    """
    module = model.get_submodule(at)
    inside = [model.get_submodule(o) for o in owners]
    projections = [module.get_submodule(r) for r in readers]
    for path in counts:
        divide_count(module, path, axes["tp"].size)
    forward, given = module.forward, []

    def run(*args: Any, **kwargs: Any) -> Any:
        def narrow(x: Tensor) -> Tensor:
            given.append(x)
            return x.new_full((1,), float("nan")).expand(*x.shape[:-1], width)

        if projections:
            args, kwargs = change_first(args, kwargs, narrow)
        try:
            with local_shards(inside):
                for name, (dim, parts) in (rows or {}).items():
                    owner, _, short = name.rpartition(".")
                    mine = own_rows(model.get_submodule(owner)._parameters[short], dim, parts, axes["tp"])  # type: ignore[arg-type]
                    model.get_submodule(owner)._parameters[short] = mine  # type: ignore[assignment]
                return forward(*args, **kwargs)
        finally:
            given.clear()

    def with_input(inner: Any) -> Any:
        return lambda *args, **kwargs: inner(*((given[-1],) if given else args), **({} if given else kwargs))

    module.forward = run
    for projection in projections:
        projection.forward = with_input(projection.forward)
