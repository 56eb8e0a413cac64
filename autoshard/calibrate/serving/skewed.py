"""Passes at several skews of the routing, and between them: the skew is fitted like any other constant of the law."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.calibrate.optimise import FloatArray
from autoshard.calibrate.serving.passes import Passes, price_runs
from autoshard.calibrate.serving.rows import Run
from autoshard.calibrate.tables import BoolArray
from autoshard.ir import OpGraph

SKEWS = (0.0, 0.5, 0.75, 1.0, 1.25)


@dataclass(frozen=True, slots=True)
class SkewedPasses:
    """The passes of the same runs at each of ``skews``, which rise; one of them where nothing is routed."""

    skews: tuple[float, ...]
    passes: tuple[Passes, ...]

    def at(self, skew: float | FloatArray) -> Passes:
        """Passes at a skew, or at one for each run; seconds lie on the line between the two nearest."""
        first = self.passes[0]
        if len(self.skews) == 1:
            return first
        known = np.array(self.skews)
        at = np.clip(np.broadcast_to(np.asarray(skew, dtype=np.float64), first.requests.shape), known[0], known[-1])
        below = np.clip(np.searchsorted(known, at, side="right") - 1, 0, len(known) - 2)
        share = ((at - known[below]) / (known[below + 1] - known[below]))[:, None]
        rows = np.arange(len(at))

        def between(values: Sequence[FloatArray]) -> FloatArray:
            stacked = np.stack(values)
            found: FloatArray = stacked[below, rows] * (1.0 - share) + stacked[below + 1, rows] * share
            return found

        return replace(
            first, decode=between([p.decode for p in self.passes]), prompt=between([p.prompt for p in self.passes])
        )

    def take(self, rows: BoolArray) -> "SkewedPasses":
        """Some of the runs."""
        return SkewedPasses(self.skews, tuple(p.take(rows) for p in self.passes))


def price_skewed(
    runs: Sequence[Run],
    graphs: Mapping[str, OpGraph],
    progress: Callable[[str], None] = lambda _: None,
    skews: Sequence[float] = SKEWS,
) -> SkewedPasses:
    """`price_runs` at every skew; runs of models without routed experts are priced once."""
    first = price_runs(runs, graphs, skews[0], progress)
    routed = np.array([any(op.kind == "experts" for _, op in graphs[run.model].all_ops()) for run in runs])
    if not routed.any():
        return SkewedPasses((skews[0],), (first,))
    found = [first]
    for skew in skews[1:]:
        part = price_runs(
            [run for run, use in zip(runs, routed, strict=True) if use],
            graphs,
            skew,
            lambda text, skew=skew: progress(f"routing skew {skew:g}: {text}"),  # type: ignore[misc]
        )
        decode, prompt = first.decode.copy(), first.prompt.copy()
        decode[routed], prompt[routed] = part.decode, part.prompt
        found.append(replace(first, decode=decode, prompt=prompt))
    return SkewedPasses(tuple(skews), tuple(found))
