"""``autoshard search``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli import options as o
from autoshard.cli.model import use_working_directory
from autoshard.cli.output_path import check_writable
from autoshard.cli.terminal import progress, show, show_json
from autoshard.errors import InvalidInputError


def search(
    model: o.Model,
    measure: Annotated[
        bool, typer.Option("--measure", help="Run candidates on real ranks and compare clocks.")
    ] = False,
    nproc: Annotated[int, typer.Option(help="Ranks to start on this machine.")] = 4,
    budget: Annotated[int, typer.Option(help="Strategies to measure.")] = 24,
    seed: Annotated[int, typer.Option(help="Of the search.")] = 0,
    phase: Annotated[str, typer.Option(help="decode or prefill.")] = "decode",
    context: Annotated[int, typer.Option(help="Tokens of the prompt.")] = 32,
    sequences: Annotated[int | None, typer.Option(help="Over all ranks; twice as many as ranks by default.")] = None,
    repeats: Annotated[int, typer.Option(help="Steps timed of each strategy.")] = 5,
    device: Annotated[str, typer.Option(help="cpu (gloo), or cuda (nccl) with as many GPUs as ranks.")] = "cpu",
    full_size: Annotated[
        bool, typer.Option("--full-size", help="The model as it is, instead of a reduced one.")
    ] = False,
    state: Annotated[Path | None, typer.Option(help="Keep measurements here, and go on from them.")] = None,
    timeout_s: Annotated[float, typer.Option(help="Seconds after which the ranks of a launch are stopped.")] = 600.0,
    json: o.Json = False,
) -> None:
    """Search for the fastest strategy by measuring candidates on real ranks (a reduced model, unless --full-size)."""
    start = time.perf_counter()
    if not measure:
        raise InvalidInputError(
            "search needs --measure, which runs candidates on ranks; predicted searches are `autoshard plan` and"
            " `autoshard compare`"
        )
    if sequences is not None and sequences < 1:
        raise InvalidInputError(f"sequences={sequences} must be at least 1")
    if state is not None:
        check_writable(state)
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.measured import Settings, search_measured
        from autoshard.validate import LaunchError, LaunchTimeout

        use_working_directory(model)
        settings = Settings(
            nproc=nproc,
            phase=phase,
            context=context,
            sequences=sequences or 0,
            repeats=repeats,
            device=device,
            timeout_s=timeout_s,
            full_size=full_size,
        )
        try:
            data = search_measured(model, settings, budget=budget, seed=seed, state=state, progress=tell)
        except LaunchTimeout as error:
            raise LaunchTimeout(f"{error}; give more with --timeout-s") from error
        except LaunchError as error:
            raise RuntimeError(str(error)) from error  # ranks that died are not the user's to mend
    data["seconds"] = time.perf_counter() - start
    if json:
        show_json(data)
        return
    from autoshard.cli.views.measured import view

    show(*view(data))
