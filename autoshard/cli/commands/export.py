"""``autoshard export``."""

from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.terminal import progress, show, show_json


def export(
    plan: Annotated[Path, typer.Argument(metavar="PLAN", help="A plan file.")],
    to: Annotated[str, typer.Option(help="dtensor, transformers, vllm, sglang, trtllm or megatron.")],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the files into this folder.")] = None,
    nearest: Annotated[
        bool, typer.Option("--nearest", help="Export the best plan the target can express, if not this one.")
    ] = False,
    cluster: Annotated[str | None, typer.Option(help="The plan's cluster, where it was a YAML file.")] = None,
    json: o.Json = False,
) -> None:
    """Write a plan for another program: its command and config, or a file that runs it.

    Exit code 2 with the reason, the nearest plan and the predicted loss if the program cannot express the plan.
    """
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.describe import describe_export
        from autoshard.api.export import export as write
        from autoshard.api.export import target_of
        from autoshard.api.plan import Plan
        from autoshard.export import save

        target_of(to)
        found = write(Plan.load(plan), to, nearest=nearest, cluster=cluster, progress=tell)
    written = [] if output is None else [str(p) for p in save(found.export, output)]
    data = {**describe_export(found), "written": written}
    if json:
        show_json(data)
        return
    from autoshard.cli.views.export import view

    show(*view(data))
