"""Whether a policy trained elsewhere helps: calls to reach the optimum of Y, cold and warm-started from X.

``python -m benchmarks.paper.transfer [--out docs/results/transfer.md]``: about five CPU minutes. For every pair and
seed `rl` is run on X (its policy is saved), on Y from nothing, and on Y from the saved policy, each with the usual
budget.
Counted is the first call whose best is within 1 % and 0.1 % of Y's proven optimum, of which the searches read nothing.
"""

import argparse
import math
import statistics
import tempfile
import time
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from autoshard.api.solve import make_simulator, run_search
from autoshard.catalogue import find
from autoshard.hardware import parse_cluster
from autoshard.ir import OpGraph
from autoshard.search.exact import ExactSearch
from autoshard.search.result import SearchResult
from autoshard.search.rl import RLConfig
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from autoshard.workload import Workload
from benchmarks.paper.points import BUDGET, Point, decode, prefill

SEEDS = 5
OTHER_SEEDS = 100
"""Added to a seed to train on X, so that what Y starts from was not drawn with its own numbers."""
SHARES = (0.01, 0.001)
OUT = Path("docs/results/transfer.md")


def at(model: str, cluster: str, what: tuple[Workload, str]) -> Point:
    """A point of the study."""
    return Point(model=model, cluster=cluster, workload=what[0], label=what[1])


PAIRS = (
    ("sibling model", at("glm-4.5-air", "H100x64", decode(16)), at("glm-4.5", "H100x64", decode(16))),
    ("model of another family", at("mixtral-8x22b", "H100x64", decode(16)), at("deepseek-v3", "H100x64", decode(16))),
    ("cluster", at("qwen3-235b-a22b", "H100x64", decode(16)), at("qwen3-235b-a22b", "H100x512", decode(16))),
    ("workload", at("llama-4-scout", "H100x64", prefill(8)), at("llama-4-scout", "H100x64", decode(16))),
)
"""What changes from X to Y, X and Y."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One run on Y: calls to come within each of `SHARES` of the optimum (infinite if never), and its last regret."""

    calls: tuple[float, ...]
    regret: float


def outcome(result: SearchResult, optimum: float) -> Outcome:
    """What a run says, ``optimum`` in tokens/s/GPU."""
    first = tuple(
        min((float(call) for call, rate in result.history if rate >= optimum * (1 - share)), default=math.inf)
        for share in SHARES
    )
    return Outcome(calls=first, regret=max(0.0, 1 - result.throughput / optimum))


@lru_cache(maxsize=4)
def _graph(model: str) -> OpGraph:
    return trace_source(find(model))


@lru_cache(maxsize=2)
def _simulator(model: str, cluster: str, workload: Workload) -> Simulator:
    return make_simulator(_graph(model), parse_cluster(cluster), workload)


def simulator_of(point: Point) -> Simulator:
    """The tables of a point."""
    return _simulator(point.model, point.cluster, point.workload)


def run_pair(source: Point, target: Point, folder: Path) -> dict[str, list[Outcome]]:
    """Every seed on the target, cold and warm."""
    trained, found = folder / "policy.safetensors", simulator_of(target)
    optimum = ExactSearch(found).run().tokens_per_s / found.cluster.num_devices
    outcomes: dict[str, list[Outcome]] = {"cold": [], "warm": []}
    for seed in range(SEEDS):
        run_search(simulator_of(source), "rl", budget=BUDGET, seed=seed + OTHER_SEEDS, save_policy=trained)
        for name, start in (("cold", None), ("warm", trained)):
            _, result = run_search(found, "rl", budget=BUDGET, seed=seed, warm_start=start)
            outcomes[name].append(outcome(result, optimum))
    return outcomes


def _count(calls: float) -> str:
    return "never" if math.isinf(calls) else f"{calls:,.0f}"


def spread(calls: list[float]) -> str:
    """Median (least to most)."""
    return f"{_count(statistics.median(calls))} ({_count(min(calls))} to {_count(max(calls))})"


def verdict(cold: list[Outcome], warm: list[Outcome], share: int) -> str:
    """Seeds in which the warm start came there in fewer calls, and the ratio of medians."""
    pairs = [(c.calls[share], w.calls[share]) for c, w in zip(cold, warm, strict=True)]
    fewer, more = sum(w < c for c, w in pairs), sum(w > c for c, w in pairs)
    medians = statistics.median([c for c, _ in pairs]), statistics.median([w for _, w in pairs])
    ratio = f"{medians[1] / medians[0]:.2f}" if all(map(math.isfinite, medians)) else "-"
    return f"{ratio}; fewer in {fewer}, more in {more} of {len(pairs)}"


def page(found: list[tuple[str, Point, Point, dict[str, list[Outcome]]]], cpu_s: float) -> str:
    """The page."""
    lines = [
        "# Does a policy trained elsewhere help?",
        "",
        "Made by `python -m benchmarks.paper.transfer`: do not edit. `rl` is trained on X, its policy saved",
        "(`--save-policy`), and a search of Y started from it (`--warm-start`). Counted are the simulator calls, of",
        f"{BUDGET:,}, until the best strategy is within 1 % and 0.1 % of the optimum that `exact` proves: median",
        f"(least to most) of {SEEDS} seeds, each with a policy trained under a seed of its own. The {BUDGET:,} calls",
        "spent on X are not counted: a policy pays only where it is used for several searches.",
        "",
        "| what changes | X | Y | start | calls to 1 % | calls to 0.1 % | worst regret at the end, % |",
        "|---|---|---|---|---:|---:|---:|",
    ]
    for change, source, target, outcomes in found:
        for name, runs in outcomes.items():
            cells = [spread([run.calls[i] for run in runs]) for i in range(len(SHARES))]
            worst = 100 * max(run.regret for run in runs)
            lines.append(f"| {change} | {source.name} | {target.name} | {name} | {' | '.join(cells)} | {worst:.3f} |")
    lines += ["", "Warm against cold, calls of warm over calls of cold (medians), and seed by seed:", ""]
    lines += ["| what changes | to 1 % | to 0.1 % |", "|---|---|---|"]
    for change, _, _, outcomes in found:
        cells = [verdict(outcomes["cold"], outcomes["warm"], i) for i in range(len(SHARES))]
        lines.append(f"| {change} | {' | '.join(cells)} |")
    sweeps = round(BUDGET * (1 - RLConfig().sweep_share))
    lines += ["", *summary(found), f"- From call {sweeps:,} on `rl` sweeps all moves from its best strategies,"]
    lines += ["  with a policy or without: what is only found there a policy could not hasten."]
    lines += ["", f"{cpu_s:.0f} CPU seconds in all.", ""]
    return "\n".join(lines)


def summary(found: list[tuple[str, Point, Point, dict[str, list[Outcome]]]]) -> list[str]:
    """What the figures say, in words that follow from them."""
    lines = []
    for i, name in enumerate(("1 %", "0.1 %")):
        medians = {
            change: tuple(statistics.median([r.calls[i] for r in outcomes[start]]) for start in ("cold", "warm"))
            for change, _, _, outcomes in found
        }
        helped = [change for change, (cold, warm) in medians.items() if warm < 0.8 * cold]
        hurt = [change for change, (cold, warm) in medians.items() if warm > 1.25 * cold]
        same = [change for change in medians if change not in (*helped, *hurt)]
        for word, cases in (
            ("takes fewer calls by more than a fifth", helped),
            ("takes more calls by more than a quarter", hurt),
            ("makes no clear difference", same),
        ):
            if cases:
                lines.append(f"- To {name} a warm start {word} (medians): {'; '.join(cases)}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT)
    out = parser.parse_args().out
    start, found = time.process_time(), []
    with tempfile.TemporaryDirectory() as folder:
        for change, source, target in PAIRS:
            found.append((change, source, target, run_pair(source, target, Path(folder))))
            print(change, {k: [r.calls for r in v] for k, v in found[-1][3].items()}, flush=True)
    out.write_text(page(found, time.process_time() - start), encoding="utf-8")


if __name__ == "__main__":
    main()
