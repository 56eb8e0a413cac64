"""``autoshard explain``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli.terminal import progress, show, show_json


def explain(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="Another: what differs, and why.")] = None,
    cluster: Annotated[str | None, typer.Option(help="The cluster, where the plan's is a file.")] = None,
    alternative: Annotated[int, typer.Option(help="Which of the plan's other degrees to open, from 1 (the best).")] = 1,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Say why a plan is as it is: its time, what binds, what every other choice and the next best degrees would cost.

    With a second plan: what differs between the two.
    """
    start = time.perf_counter()
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.explain import difference
        from autoshard.api.explain import explain as explain_plan
        from autoshard.hardware import parse_cluster
        from autoshard.plan import file

        first = file.load(plan)
        if other is None:
            tell(f"pricing the alternatives of {first.model.name}")
            where = None if cluster is None else parse_cluster(cluster)
            data = explain_plan(first, cluster=where, alternative=alternative)
        else:
            data = difference(first, file.load(other))
    data["seconds"] = time.perf_counter() - start
    if json:
        show_json(data)
        return
    from autoshard.cli.views.explain import view, view_difference

    show(*(view(data) if other is None else view_difference(data)))
