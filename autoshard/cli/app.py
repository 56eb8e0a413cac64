"""The commands and their options. What they do is imported when one runs, so that ``--help`` is quick."""

import typer

from autoshard.cli.commands import (
    check,
    compare,
    explain,
    export,
    frontier,
    models,
    plan,
    reshard,
    search,
    simulate,
    size,
    trace,
    validate,
)
from autoshard.cli.commands.calibrate import calibrate

app = typer.Typer(
    name="autoshard",
    help="Search and apply sharding plans for mixture-of-experts LLM inference.",
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command()(plan.plan)
app.command()(trace.trace)
app.command()(simulate.simulate)
app.command()(check.check)
app.command()(frontier.frontier)
app.command()(size.size)
app.command()(reshard.reshard)
app.command()(compare.compare)
app.command()(search.search)
app.command()(explain.explain)
app.command()(export.export)
app.command()(validate.validate)
app.command()(models.models)
app.add_typer(calibrate)
