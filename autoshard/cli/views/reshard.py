"""A pair of layouts and the best single one as people read them."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from autoshard.cli import numbers
from autoshard.cli.views.plan import degrees_text
from autoshard.cli.views.prediction import grid

_ROWS = (
    ("prompts", "prefill"),
    ("move weights", "weights_to_decode"),
    ("move caches", "caches_to_decode"),
    ("answers", "decode"),
    ("move weights back", "weights_to_prefill"),
)


def view(data: Mapping[str, Any]) -> Iterator[RenderableType]:
    """Both, where their time goes, and what the pair gains."""
    yield Text(f"{data['model']} on {data['cluster']}, isl {data['isl']:,}, osl {data['osl']:,}", style="bold")
    for name, found in (("two layouts", data["pair"]), ("one layout", data["single"])):
        yield ""
        if found is None:
            yield Text(f"{name}: none fits")
            continue
        table = grid()
        rate = f"{found['tokens_per_s_per_gpu']:,.1f} tokens/s/GPU made, a period of {found['requests']:,} requests"
        table.add_row(name, Text(f"{rate} in {numbers.seconds(found['period_s'])}", style="bold green"))
        table.add_row("prompts", degrees_text(found["prefill"]["degrees"]))
        if name == "two layouts":
            table.add_row("answers", degrees_text(found["decode"]["degrees"]))
        yield table
        yield _times(found)
    yield ""
    if data["gain"] is not None:
        bound = data["single_bound_tokens_per_s_per_gpu"]
        yield Text(
            f"two layouts against one: {100 * data['gain']:+.1f} %; no single layout exceeds {bound:,.1f} tokens/s/GPU"
        )
    yield Text("Predicted, and simulated only: nothing here runs two layouts in turn.", style="dim")


def _times(found: Mapping[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", padding=(0, 2, 0, 0))
    for heading in ("  of a period", "time", "share", "busiest rank gets"):
        table.add_column(heading, justify="left" if heading.startswith(" ") else "right", no_wrap=True)
    for label, key in _ROWS:
        seconds = found["seconds"][key]
        moved = found["moved_bytes"].get(key)
        if moved is None or seconds > 0:
            size = "" if moved is None else numbers.num_bytes(moved["received"])
            table.add_row(f"  {label}", numbers.seconds(seconds), numbers.share(seconds / found["period_s"]), size)
    return table
