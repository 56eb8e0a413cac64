"""``autoshard check``."""

import time
from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.model import use_working_directory
from autoshard.cli.terminal import progress, show, show_json


def check(
    model: o.Model,
    cluster: o.Cluster = o.CLUSTER,
    fix: o.Fix = None,
    engine: Annotated[
        str | None,
        typer.Option(help="vllm, sglang, trtllm or transformers; what autoshard itself executes by default."),
    ] = None,
    engine_version: Annotated[
        str | None, typer.Option(help="Its version; the one its rules were written for by default.")
    ] = None,
    quant: Annotated[
        str | None,
        typer.Option(help="bf16, fp8, fp8_block, mxfp4, nvfp4, int4, ...; what the config says by default."),
    ] = None,
    context: o.Context = 4096,
    kv_dtype: o.KvDtype = "bf16",
    option: Annotated[
        str | None,
        typer.Option(help="What the launch sets besides, e.g. mtp=1,fraction=0.95; each engine has its own."),
    ] = None,
    json: o.Json = False,
) -> None:
    """Whether a layout is legal and fits, why not, and the nearest that would do. Exits 0 whatever the verdict."""
    start = time.perf_counter()
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.check import check as answer

        use_working_directory(model)
        data = answer(
            model,
            cluster,
            fix=fix,
            engine=engine,
            version=engine_version,
            quant=quant,
            context=context,
            kv_dtype=kv_dtype,
            options=option,
            progress=tell,
        )
    data["seconds"] = time.perf_counter() - start
    if json:
        show_json(data)
        return
    from autoshard.cli.views.check import view

    show(*view(data))
