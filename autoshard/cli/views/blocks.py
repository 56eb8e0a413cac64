"""Tables of a plan's fused ops, block by block."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers

_SHORT = {"replicated": "R", "sharded": "S", "partial": "P", "tokens": "T"}
_STYLE: Mapping[int | None, str] = {0: "cyan", 1: "magenta", None: "dim"}

LEGEND = Text(
    "choice: 0 shards the output, 1 what is contracted, - replicates.  layout: needs → yields ⇒ delivered"
    " (R whole, S sharded, P partial sums, T tokens split)",
    style="dim",
)


def block_tables(
    blocks: Sequence[Mapping[str, Any]], legal: Mapping[str, Mapping[str, Any]]
) -> Iterator[RenderableType]:
    """A table per kind of block: every op, its choice among the legal ones, its layouts, its collectives."""
    names = max((len(op["name"]) for b in blocks for op in b["ops"]), default=4)
    for position, block in enumerate(blocks):
        repeat = f"  ×{block['repeat']}" if block["repeat"] > 1 else ""
        yield Text.assemble((block["name"], "bold"), (repeat, "bold"))
        table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0), show_header=position == 0)
        table.add_column("  op", no_wrap=True, min_width=names + 2)
        table.add_column("kind", no_wrap=True, min_width=10)
        table.add_column("choice", justify="center", no_wrap=True, min_width=6)
        table.add_column("legal", no_wrap=True, min_width=5)
        table.add_column("layout", no_wrap=True, min_width=11)
        table.add_column("collectives: axis(ranks), bytes × calls", no_wrap=True)
        for op in block["ops"]:
            own = legal.get(f"{block['name']}/{op['name']}")
            has_choice = own is not None or op["choice"] is not None
            table.add_row(
                f"  {op['name']}",
                op["kind"],
                Text(numbers.choice(op["choice"]) if has_choice else "", style=_STYLE[op["choice"]]),
                Text(" ".join(numbers.choice(c) for c in _ordered(own["legal"])) if own else "", style="dim"),
                layout(op),
                collectives(op["collectives"]),
            )
        yield table
        yield ""


def layout(op: Mapping[str, Any]) -> str:
    """``R → P ⇒ R``: what the op needs, what it yields, and what readers are given where that differs."""
    needs = "".join(dict.fromkeys(_SHORT[n] for n in op["needs"]))
    arrow = f"{needs} → {_SHORT[op['yields']]}" if needs else _SHORT[op["yields"]]
    return arrow if op["delivered"] == op["yields"] else f"{arrow} ⇒ {_SHORT[op['delivered']]}"


def collectives(found: Sequence[Mapping[str, Any]]) -> str:
    """``all_reduce tp(8) 896.0 KiB ×32``, one a line."""
    return "\n".join(
        f"{c['kind']} {c['axis']}({c['group_size']}) {numbers.num_bytes(c['num_bytes'])} ×{c['count']}" for c in found
    )


def excluded(legal: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Why a choice is missing, one line per reason with all the ops it concerns."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for key, own in legal.items():
        for one in own["excluded"]:
            by_reason.setdefault((numbers.choice(one["choice"]), one["reason"]), []).append(key.partition("/")[2])
    for (choice, reason), ops in by_reason.items():
        yield f"not offered: {choice} for {', '.join(dict.fromkeys(ops))} ({reason})"


def _ordered(choices: Sequence[int | None]) -> list[int | None]:
    return sorted(choices, key=lambda c: 9 if c is None else c)
