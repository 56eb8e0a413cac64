"""A module taken out of its model and run on small random data, with its large matrices left out.

What lies between the projections of an attention or mixer module is cheap even at full size: the projections are
replaced by stubs that return random rows of their output's width, whatever they are given, and note what they were
given. So the inside of the module is a function from its projections' outputs (*entries*) and its own small parameters
to its projections' inputs (*exits*), which `autoshard.tracing.head_split` experiments with.

The arguments of the module are those that the model calls it with: shapes of a forward on meta tensors, of a prompt
without a cache, and of a prompt and one decode step with transformers' cache.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from autoshard.tracing.config_check import quiet_transformers
from autoshard.tracing.export import traceable_kernels
from autoshard.tracing.fold import folded

LENGTHS = (5, 1)
"""Tokens of the prompt and of the decode step; more than one, for which modules have a branch of their own."""
_BATCH = 2
_MOST_PARAMETERS = 2**25
_CACHE = object()
"""Stands for the cache among recorded arguments."""
_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Cut:
    """A share of a module: rank ``rank`` of ``n``, by the parts of entries and parameters (absent: whole).

    With ``stand_in`` the module's input is NaN of 1/n of its width, or of width one if ``narrow``.
    """

    rank: int
    n: int
    entries: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, tuple[int, tuple[int, ...]]]
    counts: tuple[str, ...] = ()
    stand_in: bool = False
    narrow: bool = False


@dataclass(kw_only=True)
class Exits:
    """What the stubs were given in one run: (session, linear, time) -> (..., features); and what they gave."""

    given: dict[tuple[int, str, int], Tensor] = field(default_factory=dict)
    entries: dict[tuple[int, str, int], Tensor] = field(default_factory=dict)
    parameters: dict[str, nn.Parameter] = field(default_factory=dict)
    outside: set[str] = field(default_factory=set)
    """Linears that read the module's own input as it stands."""


def share(x: Tensor, dim: int, parts: Sequence[int], rank: int, n: int) -> Tensor:
    """Part ``rank`` of ``n`` of each of ``parts`` that lie side by side in ``dim``."""
    pieces = torch.split(x, list(parts), dim)
    return torch.cat([p.narrow(dim, rank * p.shape[dim] // n, p.shape[dim] // n) for p in pieces], dim)


class Bench:
    """The module ``fqn`` of the model whose calls are given, and everything needed to run it by itself."""

    def __init__(self, calls: "Calls", fqn: str) -> None:
        model = calls.model
        self.module = model.get_submodule(fqn)
        self.sessions = [[self._made(call) for call in session] for session in calls.of(fqn)]
        self._random = torch.Generator().manual_seed(0)
        own = sum(
            p.numel()
            for m in self.module.modules()
            if not isinstance(m, nn.Linear)
            for p in m._parameters.values()
            if p is not None
        )
        if own > _MOST_PARAMETERS:
            raise ValueError(f"{own} parameters outside of linears")
        linears = {name: m for name, m in self.module.named_modules() if isinstance(m, nn.Linear)}
        self._config = getattr(model, "config", None)
        self.stubs: dict[str, nn.Linear] = linears
        self._entries: dict[tuple[int, str, int], Tensor] = {}
        self._parameters: dict[str, Tensor] = {}
        called = {name for _, name, _ in self.run(None, cached=False).given}
        self.stubs = {name: m for name, m in linears.items() if name in called}
        self.unused = {name for name in linears if name not in called}

    def run(self, cut: Cut | None, *, cached: bool = True) -> Exits:
        """Run the (share of the) module through its calls: with a cache, if it has one and ``cached`` is said."""
        found = Exits()
        module = self._copy(cut, found)
        number = len(self.sessions) - 1 if cached else 0
        calls = self.sessions[number]
        cache = self._cache() if any(_holds(call, _CACHE) for call in calls) else None
        times: dict[str, int] = {}
        for call in calls:
            args, kwargs = _map(call, lambda v: cache if v is _CACHE else v)
            source = _first_tensor(args, kwargs)
            if cut is not None and cut.stand_in:
                width = 1 if cut.narrow else source.shape[-1] // cut.n
                empty = torch.full((1,), math.nan).expand(*source.shape[:-1], width)
                args, kwargs = _map((args, kwargs), lambda v, s=source, x=empty: x if v is s else v)  # type: ignore[misc]
                source = empty
            for name, stub in module.named_modules():
                if isinstance(stub, _Stub):
                    stub.enter(number, times, source, name)
            module(*args, **kwargs)
        return found

    def entry(self, key: tuple[int, str, int], rows: tuple[int, ...]) -> Tensor:
        """The whole output of a stub, the same in every run."""
        if key not in self._entries:
            width = self.stubs[key[1]].out_features
            self._entries[key] = torch.randn(*rows, width, generator=self._random)
        return self._entries[key]

    def parameter(self, name: str, like: Tensor) -> Tensor:
        """The whole value of a parameter or buffer, the same in every run."""
        if name not in self._parameters:
            value = torch.rand(like.shape, generator=self._random) + 0.25
            self._parameters[name] = value if like.is_floating_point() else torch.ones(like.shape, dtype=like.dtype)
        return self._parameters[name]

    def _copy(self, cut: Cut | None, found: Exits) -> nn.Module:
        memo: dict[int, Any] = {id(m): _Stub(self, m, cut, found) for m in self.stubs.values()}
        stubbed = tuple(name + "." for name in self.stubs)
        for name, p in self.module.named_parameters(remove_duplicate=False):
            if name.startswith(stubbed):
                continue
            value = self.parameter(name, p)
            if cut is not None and name in cut.parameters:
                dim, parts = cut.parameters[name]
                value = share(value, dim, parts, cut.rank, cut.n)
            memo[id(p)] = found.parameters.setdefault(name, nn.Parameter(value))
        for name, b in self.module.named_buffers(remove_duplicate=False):
            memo[id(b)] = self.parameter(name, b)
        config = getattr(self.module, "config", None)
        memo[id(config)] = config  # large, and only ever replaced by a copy
        module = copy.deepcopy(self.module, memo)
        for path in cut.counts if cut is not None else ():
            assert cut is not None
            divide_count(module, path, cut.n)
        return module.eval()

    def _made(self, call: _Arguments) -> _Arguments:
        random = torch.Generator().manual_seed(1)

        def make(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            if value.is_floating_point():
                return torch.randn(value.shape, generator=random)
            if value.dtype is torch.bool:
                return torch.ones(value.shape, dtype=torch.bool)
            return torch.arange(value.shape[-1] if value.ndim else 1, dtype=value.dtype).expand(value.shape)

        args, kwargs = _map(call, make)
        return args, kwargs

    def _cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self._config)


def divide_count(module: nn.Module, path: str, n: int) -> None:
    """Divide the attribute ``path`` (dotted) of ``module``; a config on the way becomes one of the module's own."""
    *owners, name = path.split(".")
    target: Any = module
    for owner in owners:
        inner = getattr(target, owner)
        if not isinstance(inner, nn.Module) and not vars(target).get("_own_" + owner):
            inner = copy.copy(inner)
            setattr(target, owner, inner)
            setattr(target, "_own_" + owner, True)
        target = inner
    setattr(target, name, getattr(target, name) // n)


class _Stub(nn.Module):
    """In place of a linear: notes its input and returns (the share of) a random output."""

    bench: Bench
    cut: Cut | None
    found: Exits
    session: int
    times: dict[str, int]
    source: Tensor
    name: str

    def __init__(self, bench: Bench, linear: nn.Linear, cut: Cut | None, found: Exits) -> None:
        super().__init__()
        self.__dict__["bench"] = bench  # not to be copied
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = torch.zeros(()).expand(linear.weight.shape)
        self.bias = None if linear.bias is None else torch.zeros(()).expand(linear.bias.shape)
        self.cut, self.found = cut, found

    def __deepcopy__(self, memo: Any) -> "_Stub":
        return self

    def enter(self, session: int, times: dict[str, int], source: Tensor, name: str) -> None:
        """Prepare for a call of the module with first tensor ``source``."""
        self.session, self.times, self.source, self.name = session, times, source, name

    def forward(self, x: Tensor) -> Tensor:
        key = (self.session, self.name, self.times.setdefault(self.name, 0))
        self.times[self.name] += 1
        self.found.given[key] = x
        if x is self.source:
            self.found.outside.add(self.name)
        whole = self.bench.entry(key, tuple(x.shape[:-1]))
        parts = None if self.cut is None else self.cut.entries.get(self.name)
        if self.cut is not None and parts is not None:
            return share(whole, -1, parts, self.cut.rank, self.cut.n)
        out = whole.clone().requires_grad_(torch.is_grad_enabled())
        self.found.entries[key] = out
        return out


class Calls:
    """The arguments that the modules of a model on meta tensors are called with; the model runs when first asked."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._sessions: list[dict[str, list[_Arguments]]] = []

    def of(self, fqn: str) -> list[list[_Arguments]]:
        """Calls of module ``fqn``: of a prompt, and of a prompt and a decode step with a cache if the model has one."""
        if not self._sessions:
            self._sessions = list(_recorded(self.model))
        return [calls.get(fqn, []) for calls in self._sessions]


def _recorded(model: nn.Module) -> Iterator[dict[str, list[_Arguments]]]:
    ids = [torch.zeros(_BATCH, n, dtype=torch.long, device="meta") for n in LENGTHS]
    config: Any = getattr(model, "config", None)
    with quiet_transformers(), torch.no_grad(), traceable_kernels(model), folded(model, bare=True):
        if not hasattr(config, "get_text_config"):
            yield _calls(model, lambda: model(ids[0]))
            return
        from transformers import DynamicCache

        cache = DynamicCache(config=config)
        runs = [_calls(model, lambda i=i: model(i, cache=cache, use_cache=True), cache) for i in ids]  # type: ignore[misc]
        # Without a cache a model looks whether its mask is trivial, which meta tensors cannot tell.
        yield {
            fqn: [_map(call, lambda v: None if v is _CACHE else v) for call in calls] for fqn, calls in runs[0].items()
        }
        yield {fqn: [call for calls in runs for call in calls.get(fqn, [])] for fqn in {**runs[0], **runs[1]}}


def _calls(model: nn.Module, run: Callable[[], Any], cache: Any = None) -> dict[str, list[_Arguments]]:
    """Calls of every module with parts, by name."""
    calls: dict[str, list[_Arguments]] = {}

    def note(fqn: str, args: Any, kwargs: Any) -> None:
        kept = _map((args, kwargs), lambda v: _CACHE if cache is not None and v is cache else v)
        calls.setdefault(fqn, []).append(kept)

    hooks = [
        module.register_forward_pre_hook(lambda _, args, kwargs, name=name: note(name, args, kwargs), with_kwargs=True)
        for name, module in model.named_modules()
        if name and next(module.children(), None) is not None
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _map(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with ``change`` applied to every leaf of its tuples, lists and dicts."""
    if isinstance(value, tuple | list):
        return type(value)(_map(v, change) for v in value)
    if isinstance(value, dict):
        return {k: _map(v, change) for k, v in value.items()}
    return change(value)


def _holds(value: Any, wanted: object) -> bool:
    found = []
    _map(value, lambda v: found.append(v) if v is wanted else None)
    return bool(found)


def _first_tensor(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
