"""All searches where costs are not additive: ``python -m benchmarks.paper.effects [--seeds 3] [--out FILE]``.

Runs what the file of JSON lines does not have yet, then writes ``docs/results/effects.md`` from it.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from autoshard.api.build_plan import degrees_dict
from autoshard.api.compare import SEEDLESS
from autoshard.api.solve import make_simulator, regret_to, run_search
from autoshard.catalogue import find
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.search.relaxed import certify
from autoshard.simulator import Simulator
from autoshard.tracing import trace_source
from autoshard.workload import EFFECTS, Workload

OUT = Path("build/effects.jsonl")
PAGE = Path(__file__).parents[2] / "docs" / "results" / "effects.md"
MODELS = ("deepseek-v3", "glm-4.5-air", "qwen3-235b-a22b")
PHASES = {"decode": 16384, "prefill": 4096}
METHODS = ("rl", "anneal", "megatron", "random", "mcmc", "rl-paper")
FIRST = 4
"""Methods that run first, on all models."""
SETS = (("overlap",), ("two-batch",), ("skew",), ("overlap", "two-batch", "contention"), EFFECTS)
CLUSTER, BUDGET = "H100x64", 4000

HEAD = f"""# All searches where costs are not additive

Made by `python -m benchmarks.paper.effects`: do not edit. Every figure is a **prediction of the simulator** on
{CLUSTER}; decode at a context of {PHASES["decode"]:,}, prefill of prompts of {PHASES["prefill"]:,}.
The effects and their formulas: [effects.md](../effects.md). A step is then no sum over ops, so `exact` gives a bound
that no strategy exceeds, and the best strategy that its additive problems lead to.
"""

EACH = """## What each effect does

Rates in tokens/s/GPU. *planned without* is the optimum of the additive costs, run with the effects; *best* is the
best that `exact` is led to, or any search found; *gain* is what planning with the effects is worth; *gap* lies between
*best* and the bound (0 is a proof). Degrees are those of *best*, with `2x` where its step runs as two batches.
"""

ALL = f"""## The searches, all effects at once

Regret is against the best known of all runs and of `exact`, the gap against the bound, both in per cent: median over
seeds, worst in brackets. Budget {BUDGET:,} calls, counted by the problem; no search reads anything of `exact`.
"""


@lru_cache(maxsize=1)
def simulator(model: str, phase: str, effects: tuple[str, ...]) -> Simulator:
    """The tables of a point."""
    workload = Workload(phase=phase, context=PHASES[phase], effects=effects)  # type: ignore[arg-type]
    return make_simulator(trace_source(find(model)), parse_cluster(CLUSTER), workload)


def certified(sim: Simulator) -> dict[str, Any]:
    """The bound, the best that exact is led to, and the additive optimum at the true cost."""
    start = time.perf_counter()
    found = certify(sim)
    seconds = time.perf_counter() - start
    plain = ExactSearch(sim.with_parts(sim.parts)).run()
    assert found.point is not None and found.dims is not None and plain.point is not None and plain.dims is not None
    assert sim.effects is not None
    num = sim.cluster.num_devices
    additive = sim.evaluate(np.array([plain.point]), np.array([plain.dims])).tokens_per_s[0] / num
    return {
        "rate": found.tokens_per_s / num,
        "bound": found.bound / num,
        "additive": float(additive),
        "without": plain.tokens_per_s / num,
        "degrees": degrees_dict(sim.points.degrees(found.point)),
        "mode": sim.effects.mode(found.point, found.dims),
        "seconds": seconds,
    }


def tasks(seeds: int) -> Iterator[tuple[str, str, tuple[str, ...], str, int]]:
    """Every (model, phase, effects, method, seed)."""
    for model in MODELS:
        for phase in PHASES:
            for effects in SETS:
                yield model, phase, effects, "exact", 0
    for methods in (METHODS[:FIRST], METHODS[FIRST:]):
        for model in MODELS:
            for phase in PHASES:
                for method in methods:
                    for seed in range(1 if method in SEEDLESS else seeds):
                        yield model, phase, EFFECTS, method, seed


def run(seeds: int, out: Path) -> None:
    """Run what is missing."""
    out.parent.mkdir(parents=True, exist_ok=True)
    done = {json.dumps(line["task"]) for line in read(out)}
    for model, phase, effects, method, seed in tasks(seeds):
        task = [model, phase, list(effects), method, seed]
        if json.dumps(task) in done:
            continue
        sim = simulator(model, phase, effects)
        if method == "exact":
            found = certified(sim)
        else:
            start = time.process_time()
            _, result = run_search(sim, method, budget=BUDGET, seed=seed)
            found = {"rate": result.throughput, "calls": result.calls, "cpu_s": time.process_time() - start}
        with out.open("a") as file:
            file.write(json.dumps({"task": task, **found}) + "\n")
        print(task, f"{found['rate']:.2f}", flush=True)


def read(path: Path) -> list[dict[str, Any]]:
    """The lines so far."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def each_table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A row per model, phase and set of effects."""
    yield "| model | phase | effects | without effects | planned without | best | gain % | gap % | degrees | exact s |"
    yield "|---|---|---|---:|---:|---:|---:|---:|---|---:|"
    for line in lines:
        model, phase, effects, method, _ = line["task"]
        if method != "exact":
            continue
        best = max([line["rate"], *(o["rate"] for o in lines if o["task"][:3] == [model, phase, effects])])
        names, d = ", ".join(effects) if len(effects) < len(EFFECTS) else "all", line["degrees"]
        degrees = ", ".join(f"{n} {d[n]}" for n in ("pp", "dp", "tp", "ep", "etp", "batch"))
        yield (
            f"| {model} | {phase} | {names} | {line['without']:,.1f} |"
            f" {line['additive']:,.1f} | {best:,.1f} | {100 * (best / line['additive'] - 1):.2f} |"
            f" {100 * regret_to(line['bound'], best):.2f} | {'2x ' if line['mode'] == 'two batches' else ''}{degrees} |"
            f" {line['seconds']:.1f} |"
        )


def method_table(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Regret and gap of every method at every point."""
    yield "| model | phase | " + " | ".join(("exact", *METHODS)) + " |"
    yield "|---|---|" + "---:|" * (1 + len(METHODS))
    everything: dict[str, list[float]] = {}
    for model in MODELS:
        for phase in PHASES:
            mine = [o for o in lines if o["task"][:3] == [model, phase, list(EFFECTS)]]
            if not mine:
                continue
            best = max(o["rate"] for o in mine)
            bound = next(o["bound"] for o in mine if o["task"][3] == "exact")
            cells = []
            for method in ("exact", *METHODS):
                rates = [o["rate"] for o in mine if o["task"][3] == method]
                if not rates:
                    cells.append("not run")
                    continue
                regrets = [regret_to(best, r) for r in rates]
                everything.setdefault(method, []).extend(regrets)
                gap = statistics.median(regret_to(bound, r) for r in rates)
                cells.append(f"{100 * statistics.median(regrets):.2f} ({100 * max(regrets):.2f}), gap {100 * gap:.2f}")
            yield f"| {model} | {phase} | " + " | ".join(cells) + " |"
    medians = [f"{100 * statistics.median(r):.2f} ({100 * max(r):.2f})" for r in everything.values()]
    yield "| all | | " + " | ".join(medians) + " |"


def write(lines: Sequence[dict[str, Any]]) -> None:
    """Write the page."""
    order = [json.dumps([m, p, list(e), name, s]) for m, p, e, name, s in tasks(100)]
    lines = sorted(lines, key=lambda line: order.index(json.dumps(line["task"])))
    seeds = 1 + max(line["task"][4] for line in lines)
    parts = [HEAD, EACH, *each_table(lines), "", ALL, f"Seeds of a method: {seeds}.\n", *method_table(lines), ""]
    PAGE.write_text("\n".join(parts))


def main() -> None:
    """Run and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    run(given.seeds, given.out)
    write(read(given.out))


if __name__ == "__main__":
    main()
