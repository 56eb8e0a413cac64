"""What the simulator predicts, as lines and bars: shared by ``plan`` and ``simulate``."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers

_PARTS = {"weights": "weights", "kv": "KV", "activations": "activations", "workspace": "workspace"}
NUM_TERMS = 8
"""Terms of the step shown one by one; the rest is one line."""


def grid() -> Table:
    """A table of a label and what it says."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True, min_width=11)
    table.add_column(overflow="fold")
    return table


def rates(predicted: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Throughput and latency."""
    used = predicted["tokens_per_s_per_used_gpu"]
    each = predicted["tokens_per_s_per_gpu"]
    beside = "" if abs(used - each) < 1e-9 * used else f" ({used:,.1f} per used GPU)"
    yield "throughput", f"{each:,.1f} tokens/s/GPU{beside}, {predicted['tokens_per_s']:,.0f} tokens/s in all"
    if predicted.get("two_batch") is not None:
        yield "batches", "two halves, overlapped" if predicted["two_batch"] else "one: two halves would be slower"
    if predicted["tpot_s"] is not None:
        per_user = predicted["tokens_per_s_per_user"]
        yield "TPOT", f"{numbers.seconds(predicted['tpot_s'])}  ({per_user:.1f} tokens/s/user)"
    if predicted["ttft_s"] is not None:
        yield "TTFT", numbers.seconds(predicted["ttft_s"])


def memory(predicted: Mapping[str, Any], capacity: float) -> Iterator[tuple[str, Text]]:
    """Memory of the fullest GPU, by part."""
    parts = predicted["memory_bytes"]
    listed = ", ".join(f"{_PARTS[name]} {numbers.num_bytes(parts[name])}" for name in _PARTS)
    share = numbers.share(parts["total"] / capacity)
    total = f"{numbers.num_bytes(parts['total'])} of {numbers.num_bytes(capacity)} ({share})"
    style = "red" if parts["total"] > capacity else ""
    yield "memory", Text.assemble((total, style), f": {listed}")


def time_bars(terms: Mapping[str, float], step_s: float, *, serving: bool = False) -> Iterator[RenderableType]:
    """The step's largest terms as bars; they sum to the step, or to a request's time per token it makes."""
    ordered = sorted(terms.items(), key=lambda t: -t[1])
    shown, rest = ordered[:NUM_TERMS], ordered[NUM_TERMS:]
    if rest:
        shown = [*shown, (f"{len(rest)} smaller terms", sum(s for _, s in rest))]
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True, min_width=30)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    longest = max((s for _, s in shown), default=1.0)
    for name, s in shown:
        table.add_row(f"  {name}", numbers.seconds(s), numbers.share(s / step_s), numbers.bar(s, longest))
    table.add_row("  request" if serving else "  step", Text(numbers.seconds(step_s), style="bold"), "", "")
    title = "time of a request per token it makes, (TTFT + (osl - 1) TPOT) / osl" if serving else "time of a step"
    yield Text(title, style="bold")
    yield table
