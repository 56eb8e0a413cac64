"""A traced model as tables."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.prediction import grid


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Sizes, then the fused ops of every kind of block."""
    table = grid()
    table.add_row("model", f"{data['model']}  ({data['class']}, {data['dtype']})")
    table.add_row("parameters", f"{data['parameters']:,}  ({data['active_parameters']:,} active)")
    for notice in data.get("notices", ()):
        table.add_row("notice", notice)
    if data.get("other_parameters"):
        table.add_row("other parts", f"{data['other_parameters']:,} parameters, not planned")
    if data.get("mtp"):
        extra = data["mtp"]
        table.add_row("MTP", f"{extra['layers']} layers, about {extra['parameters']:,} parameters more; not planned")
    if data.get("quantization"):
        table.add_row("quantised", ", ".join(f"{k} {v}" for k, v in data["quantization"].items()))
    per_key = data["attention_flops_per_token_per_key"]
    table.add_row(
        "per token",
        f"{numbers.flops(data['flops_per_token'])}, and {numbers.flops(per_key)} for every token attended to",
    )
    table.add_row("KV cache", f"{numbers.num_bytes(data['kv_bytes_per_token'])} per token")
    if data["state_bytes_per_sequence"]:
        table.add_row("state", f"{numbers.num_bytes(data['state_bytes_per_sequence'])} per sequence")
    opaque = ", ".join(f"{o['fqn']} ({o['reason']})" for o in data["opaque"])
    share = numbers.share(data["opaque_flops_share"])
    table.add_row("opaque", f"{opaque}: {share} of the FLOPs, run replicated" if opaque else "none")
    for reason in data["restricted"]:
        table.add_row("not offered", reason)
    table.add_row("took", f"{data['seconds']:.1f} s" + (" (read from the cache of traces)" if data["kept"] else ""))
    yield table
    for block in data["blocks"]:
        yield ""
        where = _instances(block)
        yield Text.assemble((f"{block['name']}  ×{block['repeat']}", "bold"), (f"  {where}" if where else "", "dim"))
        yield _ops(block)
    yield ""
    yield Text("FLOPs and bytes: of one instance; FLOPs per token, bytes of its parameters", style="dim")


def _instances(block: Mapping[str, Any]) -> str:
    first, last = block["instances"][0], block["instances"][-1]
    return first if first == last else f"{first} … {last}"


def _ops(block: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    table.add_column("  op", no_wrap=True)
    table.add_column("kind", no_wrap=True)
    table.add_column("FLOPs", justify="right", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("signature", overflow="fold")
    prefix = block["instances"][0]
    for op in block["ops"]:
        table.add_row(
            f"  {op['name']}", op["kind"], numbers.flops(op["flops"]), numbers.num_bytes(op["bytes"]), op["signature"]
        )
        for p in op["params"]:
            name = p["fqn"].removeprefix(f"{prefix}.") if prefix else p["fqn"]
            shared = f", shared with {p['shared_with']}" if p["shared_with"] else ""
            table.add_row("", "", "", "", Text(f"{name} {tuple(p['shape'])} {p['dtype']}{shared}", style="dim"))
    return table
