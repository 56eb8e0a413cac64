"""``autoshard calibrate fit | eval | measure``."""

from pathlib import Path
from typing import Annotated

import typer

from autoshard.cli.options import Json
from autoshard.cli.terminal import progress, show, show_json
from autoshard.errors import InvalidInputError

calibrate = typer.Typer(
    name="calibrate",
    help="Fit the cost model to measured tables, check it on others, or measure this machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
_Output = Annotated[Path | None, typer.Option("-o", "--output", help="Where to write; stdout by default.")]


def _write(text: str, output: Path | None) -> None:
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(f"cannot write {output}: {error}") from error


@calibrate.command("eval")
def evaluate(
    table: Annotated[Path, typer.Argument(metavar="TABLE.csv[.gz]", help="A measured table.")],
    kind: Annotated[str, typer.Option(help="gemm, moe, attention_decode, mla, nccl, deepep, serving, ...")],
    device: Annotated[str, typer.Option(help="A device that ships, or a cluster's YAML file.")] = "H100",
    held_out: Annotated[bool, typer.Option("--held-out", help="Only rows that the shipped fit did not see.")] = False,
    json: Json = False,
) -> None:
    """Errors of the cost model on the rows of a measured table, by group."""
    from autoshard.calibrate import KINDS, evaluate_table, read_table
    from autoshard.hardware import parse_cluster

    if kind == "serving":
        _evaluate_serving(table, json=json)
        return
    if kind not in KINDS:
        raise InvalidInputError(f"unknown kind {kind!r}: known are {', '.join(KINDS)} and serving")
    cluster = parse_cluster(device if device.endswith((".yaml", ".yml")) else f"{device}x8")
    rows = read_table(table, KINDS[kind].columns)
    if held_out:
        rows = rows.take(KINDS[kind].held_out(rows))
        if not len(rows):
            raise InvalidInputError(f"table {table} has no rows that the fit did not see")
    data = evaluate_table(KINDS[kind], rows, cluster)
    if json:
        show_json(data)
        return
    from autoshard.cli.views.calibrate import errors_view

    show(*errors_view(data))


def _evaluate_serving(path: Path, *, json: bool) -> None:
    with progress() as tell:
        tell("importing torch")
        from autoshard import catalogue
        from autoshard.api.models import graph_of, source_of
        from autoshard.calibrate import read_table
        from autoshard.calibrate.serving import COLUMNS, evaluate_serving

        known = {entry.name for entry in catalogue.entries()}
        rows = read_table(path, COLUMNS)
        data = evaluate_serving(rows, lambda name: graph_of(name, source_of(name)) if name in known else None, tell)
    if json:
        show_json(data)
        return
    from autoshard.cli.views.calibrate import serving_view

    show(*serving_view(data))


@calibrate.command("fit")
def fit(
    folder: Annotated[Path, typer.Argument(help="A folder of measured tables (gemm_*.csv.gz, moe_*.csv.gz, ...).")],
    like: Annotated[str, typer.Option(help="The shipped device that was measured: its datasheet is kept.")] = "H100",
    output: _Output = None,
    json: Json = False,
) -> None:
    """Fit every law that the folder has rows for, and write a device file with the errors on rows left out."""
    from autoshard.calibrate import fit_folder
    from autoshard.calibrate.device_text import device_text
    from autoshard.hardware import device_file_text, parse_cluster

    cluster, base = parse_cluster(f"{like}x8"), device_file_text(like)
    with progress(hidden=json) as tell:
        groups = fit_folder(folder, cluster, tell)
    if output is not None or not json:
        _write(device_text(base, groups), output)
    if json:
        rows = [
            {"kind": g.kind, "group": g.label, "held_out": g.held_out, "fitted": g.fitted, "source": g.law.source}
            for g in groups
        ]
        show_json({"device": like, "groups": rows})


@calibrate.command("measure")
def measure(
    device: Annotated[str, typer.Option(help="cpu or cuda; cuda where there is one.")] = "auto",
    name: Annotated[str, typer.Option(help="What to call the device.")] = "local",
    like: Annotated[str, typer.Option(help="The shipped device whose constants stand for what is not timed.")] = "H100",
    quick: Annotated[bool, typer.Option("--quick", help="Tiny sizes, for a test of the command.")] = False,
    tables: Annotated[Path | None, typer.Option(help="Also write the timed rows to this folder, as CSV.")] = None,
    output: _Output = None,
    json: Json = False,
) -> None:
    """Time this machine's products, experts, attention, copies and (under torchrun) collectives.

    Writes a cluster file for --cluster.
    """
    with progress(hidden=json) as tell:
        tell("importing torch")
        from autoshard.calibrate.measure import measure_machine

        found = measure_machine(device=device, name=name, like=like, quick=quick, progress=tell)
    if found is None:  # a rank other than the first of a torchrun job
        return
    if tables is not None:
        found.write_tables(tables)
    if output is not None or not json:
        _write(found.cluster_text(), output)
    if json:
        show_json(found.report())
