"""All searches beside the optimum."""

from collections.abc import Iterator, Mapping
from statistics import median
from typing import Any

from rich.console import RenderableType
from rich.table import Table

from autoshard.cli import numbers
from autoshard.cli.views.prediction import grid


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """The optimum, then a row per method."""
    head = grid()
    head.add_row("space", f"{data['model']} on {data['cluster']}: {data['degree_points']:,} degree points that fit")
    exact = data["exact"]
    if data["effects"]:
        head.add_row("effects", ", ".join(data["effects"]))
    if exact["is_bound"]:
        bound = exact["bound_tokens_per_s_per_gpu"]
        head.add_row("bound", f"{bound:,.2f} tokens/s/GPU, which no strategy exceeds, in {exact['seconds']:.1f} s")
        best = data["best_known_tokens_per_s_per_gpu"]
        below = numbers.share(1 - best / bound)
        head.add_row("best known", f"{best:,.2f} tokens/s/GPU, {below} below the bound; regret is against it")
        head.add_row("exact", f"{exact['tokens_per_s_per_gpu']:,.2f} tokens/s/GPU with the best it was led to")
    else:
        head.add_row(
            "optimum", f"{exact['tokens_per_s_per_gpu']:,.2f} tokens/s/GPU, proven in {exact['seconds']:.1f} s"
        )
    untied = exact["untied_bound_tokens_per_s_per_gpu"]
    if untied is not None:
        gain = untied / exact["tokens_per_s_per_gpu"] - 1 if exact["tokens_per_s_per_gpu"] else 0.0
        more = f"at most {numbers.share(gain)} more" if gain > 1e-9 else "nothing more (proven)"
        head.add_row("untied", f"{more}, were choices each layer's own and not the same in all repeats of a block")
    head.add_row("budget", f"{data['budget']:,} simulator calls a run (megatron: all its strategies)")
    yield head
    yield ""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 3, 0, 0))
    table.add_column("method")
    for name in ("runs", "median tokens/s/GPU", "median regret", "worst regret", "calls", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, method in data["methods"].items():
        runs = method["runs"]
        table.add_row(
            name,
            str(len(runs)),
            f"{median(r['tokens_per_s_per_gpu'] for r in runs):,.2f}",
            numbers.share(method["median_regret"]),
            numbers.share(method["worst_regret"]),
            f"{median(r['calls'] for r in runs):,.0f}",
            f"{median(r['seconds'] for r in runs):.2f}",
        )
    yield table
