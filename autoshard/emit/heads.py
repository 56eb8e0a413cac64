"""Modules that run on their heads: recurrent mixers, and attention cores with one fused projection.

Such a module is told its local numbers of heads and widths, uses its rows of its own small parameters, and gets its
projections' outputs by heads; its state and its cache then hold this rank's heads only. What to tell it was found when
the model was traced (`autoshard.tracing.head_split`).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from autoshard.emit.local import local_parameters, map_first_tensor, replace_forward
from autoshard.emit.parts import own_rows
from autoshard.emit.steps import Axes
from autoshard.ir import Attention, Block, Linear, Mixer
from autoshard.sharding import ResolvedOp
from autoshard.tracing.head_bench import divide_count


def head_leaders(items: Iterable[ResolvedOp]) -> Iterator[ResolvedOp]:
    """The ops that decide for their module whether it runs on its heads."""
    for item in items:
        if isinstance(item.op, Mixer | Attention) and item.op.split is not None:
            yield item


def used_by(leader: ResolvedOp, items: Iterable[ResolvedOp]) -> list[ResolvedOp]:
    """The leader and the ops whose parameters its module uses itself."""
    kinds = ("mixer", "attention", "combine", "linear")
    return [i for i in items if i.op.name == leader.op.name or (i.op.follows == leader.op.name and i.op.kind in kinds)]


def emit_heads(
    model: nn.Module, block: Block, instance: int, leader: ResolvedOp, items: Sequence[ResolvedOp], axes: Axes
) -> None:
    """Let the module of ``leader`` run on its heads, or whole where its choice says so.

    The projections in it must have been emitted before.
    """
    op = leader.op
    assert isinstance(op, Mixer | Attention) and op.split is not None and leader.option is not None
    module = model.get_submodule(block.fqn(op.fqn, instance))
    mine = used_by(leader, items)
    assert not any(i.exit or any(i.entry) for i in mine), f"{op.fqn}: a step inside the module"
    num_shares = axes["tp"].size if leader.option.choice == 0 else 1
    held = [
        (model.get_submodule(block.fqn(owner, instance)), name, p.split_dim, p.parts if num_shares > 1 else ())
        for item in mine
        for p in item.op.params
        for owner, _, name in [p.fqn.rpartition(".")]
    ]
    _emit_owned(module, held, axes)
    for path in op.split.counts if num_shares > 1 else ():
        divide_count(module, path, num_shares)
    if op.split.readers:
        projections = [module.get_submodule(path) for path in op.split.readers]
        (width,) = {i.op.in_dim.size for i in items if isinstance(i.op, Linear) and i.op.fqn in _under(op)}
        _emit_stand_in(module, projections, width // num_shares)


def _under(op: Mixer | Attention) -> set[str]:
    """FQNs of the linears that read the input of the op's module."""
    return {f"{op.fqn}.{path}" for path in (op.split.readers if op.split is not None else ())}


def _emit_owned(module: nn.Module, held: list[tuple[nn.Module, str, int, tuple[int, ...]]], axes: Axes) -> None:
    """Run ``module`` with local parameters of the owners in ``held``; of unequal parts, with this rank's rows."""
    owners = list(dict.fromkeys(owner for owner, _, _, _ in held))
    cuts = [(owner, name, dim, parts) for owner, name, dim, parts in held if len(set(parts)) > 1]
    rank, size = axes["tp"].coordinate, axes["tp"].size

    @contextmanager
    def local() -> Iterator[None]:
        with ExitStack() as stack:
            for owner in owners:
                stack.enter_context(local_parameters(owner))
            for owner, name, dim, parts in cuts:
                whole = owner._parameters[name]
                assert whole is not None
                owner._parameters[name] = own_rows(whole, dim, parts, rank, size)  # type: ignore[assignment]
            yield

    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            with local():
                return forward(*args, **kwargs)

        return run

    if owners:
        replace_forward(module, make)


def _emit_stand_in(module: nn.Module, projections: list[nn.Module], width: int) -> None:
    """Give ``module`` an input of ``width`` to read widths off, and ``projections`` the input that it was given.

    Nothing computes with the stand-in: the trace has seen that only the projections read the module's input.
    """
    given: list[Tensor] = []

    def narrow(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            def stand_in(x: Tensor) -> Tensor:
                given.append(x)
                return x.new_full((1,), float("nan")).expand(*x.shape[:-1], width)

            args, kwargs = map_first_tensor(args, kwargs, stand_in)
            try:
                return forward(*args, **kwargs)
            finally:
                given.clear()

        return run

    def real(forward: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: forward(*((given[-1],) if given else args), **({} if given else kwargs))

    replace_forward(module, narrow)
    for projection in projections:
        replace_forward(projection, real)
