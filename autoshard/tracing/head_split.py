"""Can a module be split by heads, and how? Found by experiment, not by names.

1. *Which inputs does each half of the outputs need?* Gradients of the first and of the second half of a module's exits
   say which features of every entry, and which rows of every parameter, each half depends on. Where no feature of an
   entry serves both halves, the features fall into *parts* (q|k|v, gate|x|B|C|dt), of each of which a half needs its
   half. An entry that both halves need throughout is needed whole (the B, C and dt of a Mamba before their norms). In
   any other case the module cannot be split.
2. *How far can it be split?* The first output feature alone needs one head of every part; what divides the number of
   heads of all parts divides the module.
3. *What must the module be told?* Its forward views tensors by numbers it keeps: of heads, of widths. Those among its
   integer attributes whose values are such numbers are divided, and the share is run (prompt and cached decode) on its
   shares of entries and parameters: it must give its share of the whole module's exits, on the first and the last of
   2 (or 3) and of all shares. A module that reads its width off its input is given a narrow stand-in full of NaN.

So a split is only ever offered with a proof by example at hand; `autoshard validate` runs it on ranks.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from autoshard.ir import HeadSplit
from autoshard.tracing.head_bench import Bench, Calls, Cut, Exits, share

_TOLERANCE = 1e-3
"""Relative difference between a share and its part of the whole; both are float32, a wrong split is off by order 1."""
_MOST_TRIALS = 64
_NOT_COUNTS = ("idx", "index", "id", "kernel_size")
"""Ends of attribute names that never count heads; they only shorten the search."""


@dataclass(frozen=True, kw_only=True)
class ModuleSplit:
    """How a module is split: parts of the outputs of its linears and of its own parameters (absent: whole).

    Names are relative to the module. ``inner`` are linears that the module never calls, but whose parameters it uses.
    """

    heads: HeadSplit
    entries: Mapping[str, tuple[int, ...]]
    parameters: Mapping[str, tuple[int, tuple[int, ...]]]
    inner: frozenset[str]


class NotSplit(Exception):
    """Why a module cannot be split by heads, in a few words.

    ``readers`` are set if it reads a width off its input: the linears that read the input.
    """

    def __init__(self, reason: str, readers: tuple[str, ...] = ()) -> None:
        super().__init__(reason)
        self.readers = readers


def find_split(calls: Calls, fqn: str, entries: frozenset[str]) -> ModuleSplit:
    """How what the module ``fqn`` of a model makes of its linears ``entries`` is split by heads.

    Raises:
        NotSplit: if it cannot be, or not be run by itself.
    """
    try:
        experiment = _Experiment(Bench(calls, fqn), entries)
        try:
            return experiment.run()
        except NotSplit as reason:
            raise NotSplit(str(reason), experiment.width_readers()) from None
    except NotSplit:
        raise
    except Exception as error:  # whatever a module does when it is run alone
        text = " ".join(str(error).split())[:80]
        raise NotSplit(f"its module cannot be run by itself ({type(error).__name__}: {text})") from error


class _Experiment:
    """The three steps on one module."""

    def __init__(self, bench: Bench, entries: frozenset[str]) -> None:
        self.bench = bench
        with torch.enable_grad():
            self.exits = bench.run(None, cached=False)
        read = [x for (_, name, _), x in self.exits.entries.items() if name in entries]
        self.ends = {k: x for k, x in self.exits.given.items() if x.requires_grad and _depends(x, read)}
        if not self.ends:
            raise NotSplit("its module has no projection of what it computes")

    def run(self) -> ModuleSplit:
        widths = [x.shape[-1] for x in self.ends.values()]
        n = next((n for n in (2, 3) if all(w % n == 0 for w in widths)), None)
        if n is None:
            raise NotSplit(f"its widths {widths} are odd")
        first, last = self._needed(_piece(0, n)), self._needed(_piece(1, n, n))
        parts = {key: _parts(first[key], last[key], n, key[1]) for key in first}
        entries = {name: p[1] for (kind, name), p in parts.items() if kind == "entry" and p is not None}
        parameters = {name: p for (kind, name), p in parts.items() if kind == "parameter" and p is not None}
        if not entries:
            raise NotSplit("every output needs all of its inputs")
        single = self._needed(lambda _: range(1))
        heads = set(itertools.chain(*(_heads(single[k], p) for k, p in parts.items() if p)))
        largest = math.gcd(*widths, *heads)
        for size in sorted((d for d in range(2, largest + 1) if largest % d == 0), reverse=True)[:3]:
            told = self._told(size, n, entries, parameters, heads)
            if told is not None:
                return ModuleSplit(
                    heads=told, entries=entries, parameters=parameters, inner=frozenset(self.bench.unused)
                )
        raise NotSplit("its forward does not work on a share of its heads")

    def _needed(self, wanted: Callable[[int], range]) -> dict[tuple[str, str], Tensor]:
        """Per entry and parameter, where the gradient of the exits' features ``wanted(width)`` is not zero."""
        random = torch.Generator().manual_seed(2)
        total = torch.zeros(())
        for x in self.ends.values():
            features = list(wanted(x.shape[-1]))
            total = total + (x[..., features] * torch.randn(x[..., features].shape, generator=random)).sum()
        leaves = {("entry", key): t for key, t in self.exits.entries.items()}
        named = {("parameter", name): p for name, p in self.exits.parameters.items()}
        grads = torch.autograd.grad(total, [*leaves.values(), *named.values()], retain_graph=True, allow_unused=True)
        found: dict[tuple[str, str], Tensor] = {}
        for (_, key), t, g in zip(leaves, leaves.values(), grads, strict=False):
            hit = torch.zeros(t.shape, dtype=torch.bool) if g is None else g != 0
            hit = hit.flatten(0, -2).any(0)
            name = ("entry", key[1])
            found[name] = found[name] | hit if name in found else hit
        for name, t, g in zip(named, named.values(), grads[len(leaves) :], strict=True):
            found[name] = torch.zeros(t.shape, dtype=torch.bool) if g is None else g != 0
        return found

    def _told(
        self,
        size: int,
        n: int,
        entries: Mapping[str, tuple[int, ...]],
        parameters: Mapping[str, tuple[int, tuple[int, ...]]],
        heads: set[int],
    ) -> HeadSplit | None:
        """Which attributes make the module run on shares down to one of ``size``; None if none do."""
        with torch.no_grad():
            whole = self.bench.run(None)
            known = heads | _widths(entries, parameters, [x.shape[-1] for x in self.ends.values()])
            likely, possible = _attributes(self.bench.module, known, size)

            def works(counts: tuple[str, ...], stand_in: bool) -> bool:
                shares = [(rank, k) for k in dict.fromkeys((n, size)) for rank in (0, k - 1)]
                told = {"entries": entries, "parameters": parameters, "counts": counts, "stand_in": stand_in}
                return all(self._agrees(whole, Cut(rank=rank, n=k, **told)) for rank, k in shares)  # type: ignore[arg-type]

            for counts in itertools.islice(_selections(likely, possible), _MOST_TRIALS):
                for stand_in in (False, True):
                    if works(counts, stand_in):
                        readers = tuple(sorted(whole.outside)) if stand_in else ()
                        return HeadSplit(size=size, counts=_fewest(counts, works, stand_in), readers=readers)
        return None

    def width_readers(self) -> tuple[str, ...]:
        """The linears that read the module's input, if the module also reads a width off it."""
        with torch.no_grad():
            whole = self.bench.run(None)
            wide, narrow = (
                Cut(rank=0, n=1, entries={}, parameters={}, stand_in=True, narrow=narrow) for narrow in (False, True)
            )
            reads = self._agrees(whole, wide) and not self._agrees(whole, narrow)
            return tuple(sorted(whole.outside)) if reads else ()

    def _agrees(self, whole: Exits, cut: Cut) -> bool:
        """Whether the share gives its part of every exit."""
        try:
            got = self.bench.run(cut)
        except Exception:  # sizes that do not go together
            return False
        if got.outside != whole.outside:
            return False  # the stand-in was computed with
        names = {name for _, name, _ in self.ends}
        for key, x in whole.given.items():
            if key[1] in got.outside:
                continue
            want, have = share(x, -1, (x.shape[-1],), cut.rank, cut.n) if key[1] in names else x, got.given.get(key)
            if have is None or have.shape != want.shape or not have.isfinite().all():
                return False
            if (have - want).abs().max() > _TOLERANCE * want.abs().max():
                return False
        return True


def _piece(first: int, n: int, last: int | None = None) -> Callable[[int], range]:
    """Pieces ``first`` up to ``last`` (one piece without it) of n pieces of a width."""
    end = first + 1 if last is None else last
    return lambda width: range(first * width // n, end * width // n)


def _depends(x: Tensor, entries: list[Tensor]) -> bool:
    grads = torch.autograd.grad(x.sum(), entries, retain_graph=True, allow_unused=True) if entries else ()
    return any(g is not None and bool(g.any()) for g in grads)


def _fewest(counts: tuple[str, ...], works: Callable[[tuple[str, ...], bool], bool], stand_in: bool) -> tuple[str, ...]:
    """``counts`` without those that make no difference: what has the value of a width need not be one."""
    for path in counts:
        fewer = tuple(p for p in counts if p != path)
        if works(fewer, stand_in):
            counts = fewer
    return counts


def _parts(first: Tensor, last: Tensor, n: int, name: str) -> tuple[int, tuple[int, ...]] | None:
    """(dim, widths) of the parts of which the first share needs a part and the others the rest; None if whole."""
    for dim in range(first.ndim):
        others = [d for d in range(first.ndim) if d != dim]
        a, b = (x.any(others) if others else x for x in (first, last))
        if bool((a & b).all()) or not bool((a | b).any()):
            continue
        if bool((a & b).any()) or not bool((a | b).all()):
            raise NotSplit(f"heads share part of {name}")
        lengths = [(k, len(list(run))) for k, run in itertools.groupby(a.tolist())]
        pairs = list(zip(lengths[::2], lengths[1::2], strict=False))
        if len(lengths) % 2 or any(not x[0] or y[1] != (n - 1) * x[1] for x, y in pairs):
            raise NotSplit(f"{name} is not laid out by heads")
        return dim, tuple(x[1] + y[1] for x, y in pairs)
    return None


def _heads(single: Tensor, parts: tuple[int, tuple[int, ...]]) -> Iterator[int]:
    """How many heads each part has, told by what the first output feature needs of it."""
    dim, widths = parts
    others = [d for d in range(single.ndim) if d != dim]
    for part in torch.split(single.any(others) if others else single, list(widths)):
        needed = part.nonzero().flatten()
        if len(needed):
            width, least = part.numel(), int(needed[-1]) + 1
            yield max(d for d in range(1, width // least + 1) if width % d == 0)


def _widths(
    entries: Mapping[str, tuple[int, ...]],
    parameters: Mapping[str, tuple[int, tuple[int, ...]]],
    exits: list[int],
) -> set[int]:
    """Widths that a split divides: of exits, of parts and of runs of parts."""
    found = set(exits)
    for parts in (*entries.values(), *(p for _, p in parameters.values())):
        for i in range(len(parts)):
            found |= {sum(parts[i:j]) for j in range(i + 1, len(parts) + 1)}
    return found


def _attributes(module: nn.Module, known: set[int], size: int) -> tuple[list[str], list[str]]:
    """Integer attributes that ``size`` divides: those of the module that are known numbers, and others that may count.

    The second are attributes that divide a known number, and the known numbers of the module's config.
    """
    likely, possible = [], []
    places = [
        (f"{name}." if name else "", vars(m)) for name, m in module.named_modules() if not isinstance(m, nn.Linear)
    ]
    config = getattr(module, "config", None)
    if config is not None and hasattr(config, "__dict__"):
        places.append(("config.", vars(config)))
    for prefix, values in places:
        for name, value in values.items():
            if name.startswith("_") or name.endswith(_NOT_COUNTS) or isinstance(value, bool):
                continue
            if not isinstance(value, int) or value < size or value % size:
                continue
            if value in known and prefix != "config.":
                likely.append(prefix + name)
            elif value in known or (prefix != "config." and any(k % value == 0 for k in known)):
                possible.append(prefix + name)
    return likely, sorted(possible, key=lambda path: "head" not in path)


def _selections(likely: list[str], possible: list[str]) -> Iterator[tuple[str, ...]]:
    """All likely attributes, then with one dropped or one possible added, then two such changes, ..."""
    changes = [*likely, *possible]
    for number in range(len(changes) + 1):
        for changed in itertools.combinations(changes, number):
            yield tuple(p for p in changes if (p in likely) != (p in changed))
