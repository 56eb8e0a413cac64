"""``autoshard validate``."""

import time
from typing import Annotated, Any

import typer

from autoshard.cli import options as o
from autoshard.cli.model import is_plan_file, use_working_directory
from autoshard.cli.terminal import progress, show, show_json


def validate(
    subject: Annotated[str, typer.Argument(metavar="PLAN|MODEL", help="A plan file, or a model.")],
    nproc: Annotated[
        int | None, typer.Option(help="Ranks to start on this machine (4, or none with --simulate-ranks).")
    ] = None,
    simulate_ranks: Annotated[int | None, typer.Option(help="Ranks to simulate in this process.")] = None,
    fix: o.Fix = None,
    pin: o.Pin = None,
    allow_uneven: o.AllowUneven = False,
    dtype: Annotated[str, typer.Option(help="float32, float64 or both.")] = "both",
    timeout_s: Annotated[
        float | None, typer.Option(help="Seconds after which ranks are stopped (300, or 20 a simulated rank).")
    ] = None,
    model: Annotated[str | None, typer.Option(help="How to build a plan's model, where its file cannot say.")] = None,
    device: Annotated[str | None, typer.Option(help="Also time one rank's ops on it: cpu or cuda.")] = None,
    json: o.Json = False,
) -> None:
    """Prove a plan's sharding: at full size without numbers, then on ranks: same logits, collectives and bytes.

    Started by torchrun (``torchrun ... --no-python autoshard validate PLAN --device cuda``) it runs on the ranks of
    that job, of any number of nodes; the first of them prints. Exit code 1 (of that one) if anything differs.
    """
    start = time.perf_counter()
    planned = is_plan_file(subject)
    with progress() as tell:
        tell("importing torch")
        from autoshard.api.pins import parse_fix, parse_pin
        from autoshard.api.plan import Plan
        from autoshard.api.validation import validate as run_cases
        from autoshard.validate import LaunchError, LaunchTimeout, is_first

        fixed, pinned = parse_fix(fix), parse_pin(pin)
        use_working_directory(subject if model is None else model)
        what: Any = Plan.load(subject) if planned else subject
        try:
            data = run_cases(
                what,
                nproc=nproc,
                simulate_ranks=simulate_ranks,
                fixed=fixed,
                pinned=pinned,
                allow_uneven=allow_uneven,
                dtype=dtype,
                timeout_s=timeout_s,
                model=model,
                device=device,
                progress=tell,
            )
        except LaunchTimeout as error:
            raise LaunchTimeout(f"{error}; give more with --timeout-s") from error
        except LaunchError as error:
            raise RuntimeError(str(error)) from error  # ranks that died are not the user's to mend
    data["seconds"] = time.perf_counter() - start
    if json and is_first():
        show_json(data)
    elif is_first():
        from autoshard.cli.views.validate import view

        show(*view(data))
    if not data["passed"] and is_first():  # torchrun stops all ranks once one fails, and the first has yet to print
        raise typer.Exit(1)
