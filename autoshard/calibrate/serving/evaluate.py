"""Errors of the serving law on measured runs, leave one model out, and where they come from."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autoshard.calibrate.evaluate import summary
from autoshard.calibrate.optimise import FloatArray
from autoshard.calibrate.serving.choice import choices_under_limits
from autoshard.calibrate.serving.fit import Constants, fit_constants, leave_one_out
from autoshard.calibrate.serving.passes import TERMS, Passes
from autoshard.calibrate.serving.rows import Run, read_runs
from autoshard.calibrate.serving.skewed import price_skewed
from autoshard.calibrate.tables import BoolArray, Table
from autoshard.errors import InvalidInputError
from autoshard.ir import OpGraph

FACTORS = 2.0 ** (np.arange(-20, 21) / 10.0)
"""By which a term may be wrong: a quarter to four times, in steps of 7 %."""


def evaluate_serving(
    table: Table, graph_of: Callable[[str], OpGraph | None], progress: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Errors in per cent of TPOT and TTFT, ``moe`` and ``dense`` apart, each ``by`` model and device and ``by_device``.

    Every model is predicted by constants that only other models' rows decided. Kernel laws are the device files'
    (fitted to kernels, not to serving).

    Args:
        table: Serving runs.
        graph_of: The operator graph of a model by its name in lower case, None where there is none.
        progress: Is told each step.

    Raises:
        InvalidInputError: for cells that make no sense, or if no model of the table is known.
    """
    read = read_runs(table)
    graphs: dict[str, OpGraph] = {}
    skipped: dict[str, str] = {}
    for name in dict.fromkeys(run.model for run in read.runs):
        progress(f"tracing {name}")
        graph = graph_of(name)
        if graph is None:
            skipped[name] = "no model of this name is in the catalogue"
        else:
            graphs[name] = graph
    known = np.array([run.model in graphs for run in read.runs])
    if not known.any():
        raise InvalidInputError(f"{table.name}: none of its models is in the catalogue: {', '.join(skipped)}")
    runs = [run for run in read.runs if run.model in graphs]
    tpot_s, ttft_s = read.tpot_s[known], read.ttft_s[known]
    priced = price_skewed(runs, graphs, progress)
    progress("fitting")
    groups = [(run.model, run.engine) for run in runs]
    constants = leave_one_out(priced, tpot_s, ttft_s, groups)
    own = [constants[run.model] for run in runs]
    passes = priced.at(np.array([c.routing_skew for c in own]))
    routed = {name: any(op.kind == "experts" for _, op in g.all_ops()) for name, g in graphs.items()}
    moe = np.array([routed[run.model] for run in runs])
    final = fit_constants(priced, tpot_s, ttft_s, groups)
    found: dict[str, Any] = {"kind": "serving", "rows": len(runs), "skipped": skipped}
    for name, rows in (("moe", moe), ("dense", ~moe)):
        if rows.any():
            found[name] = _section(runs, passes, own, tpot_s, ttft_s, rows)
    found["under_a_limit"] = choices_under_limits(runs, _by_model(Constants.tpot_s, own, passes), tpot_s)
    found["constants"] = {name: asdict(c) for name, c in constants.items()}
    found["constants_of_all_rows"] = asdict(final)
    return found


def _by_model(
    values: Callable[[Constants, Passes], FloatArray], own: Sequence[Constants], passes: Passes
) -> FloatArray:
    """A quantity of every run under its model's constants."""
    found = np.zeros(len(own))
    for constants in dict.fromkeys(own):
        rows = np.array([c == constants for c in own])
        found[rows] = values(constants, passes)[rows]
    return found


def _errors(predicted: FloatArray, measured: FloatArray) -> FloatArray:
    found: FloatArray = 100.0 * np.abs(predicted / measured - 1.0)
    return found


def _section(
    runs: Sequence[Run],
    passes: Passes,
    own: Sequence[Constants],
    tpot_s: FloatArray,
    ttft_s: FloatArray,
    rows: BoolArray,
) -> dict[str, Any]:
    labels = np.array([f"{run.model} {run.device}" for run in runs])
    devices = np.array([run.device for run in runs])
    tpot = _by_model(Constants.tpot_s, own, passes)
    ttft = _by_model(Constants.ttft_s, own, passes)
    section: dict[str, Any] = {}
    for name, said, real in (("tpot", tpot, tpot_s), ("ttft", ttft, ttft_s)):
        errors = _errors(said, real)
        by = {str(label): summary(errors[rows & (labels == label)]) for label in sorted(set(labels[rows].tolist()))}
        on = {str(d): summary(errors[rows & (devices == d)]) for d in sorted(set(devices[rows].tolist()))}
        section[name] = {**summary(errors[rows]), "by": by, "by_device": on}
    section["terms"] = _terms(passes, own, tpot, tpot_s, rows)
    served = np.array([f"{run.model} {run.engine} {run.device}" for run in runs])
    section["error_from"] = error_from(served, passes, own, tpot, tpot_s, rows)
    picked = [run for run, use in zip(runs, rows, strict=True) if use]
    section["under_a_limit"] = choices_under_limits(picked, tpot[rows], tpot_s[rows])
    return section


def _terms(
    passes: Passes, own: Sequence[Constants], tpot: FloatArray, tpot_s: FloatArray, rows: BoolArray
) -> Mapping[str, Any]:
    """Of every term: its median share of predicted TPOT, and the median error of TPOT without it."""
    found: dict[str, Any] = {}

    def add(name: str, seconds: FloatArray, without: FloatArray) -> None:
        found[name] = {
            "median_share": float(np.median((seconds / tpot)[rows])),
            "median_ape_without": float(np.median(_errors(without, tpot_s)[rows])),
        }

    for i, name in enumerate(TERMS):
        add(name, passes.decode[:, i], _by_model(Constants.tpot_s, own, passes.without(i)))
    no_host = [replace(c, step_s=0.0, sequence_s=0.0) for c in own]
    add("host", _by_model(Constants.host_s, own, passes), _by_model(Constants.tpot_s, no_host, passes))
    no_prompts = [replace(c, interference=0.0) for c in own]
    add("prompts", _by_model(Constants.prompts_s, own, passes), _by_model(Constants.tpot_s, no_prompts, passes))
    bare = [replace(c, step_s=0.0, sequence_s=0.0, interference=0.0) for c in own]
    found["kernels alone"] = {
        "median_share": float(np.median((passes.decode_s / tpot)[rows])),
        "median_ape_without": float(np.median(_errors(_by_model(Constants.tpot_s, bare, passes), tpot_s)[rows])),
    }
    return found


def error_from(
    labels: NDArray[np.str_],
    passes: Passes,
    own: Sequence[Constants],
    tpot: FloatArray,
    tpot_s: FloatArray,
    rows: BoolArray,
) -> dict[str, dict[str, Any]]:
    """Which term an error comes from: how small it would be, of every label, if one term were off by one factor.

    For every term the one of `FACTORS` with the least median error of TPOT, which a look at the measurements finds: no
    prediction uses it. A term whose factor takes much of the error away is wrong there; where none does, the shape is.
    """
    host, prompts = (_by_model(of, own, passes) for of in (Constants.host_s, Constants.prompts_s))
    seconds = {**{name: passes.decode[:, i] for i, name in enumerate(TERMS)}, "host": host, "prompts": prompts}
    found = {}
    for label in sorted(set(labels[rows].tolist())):
        here = rows & (labels == label)
        of = {}
        for name, own_s in seconds.items():
            errors = [float(np.median(_errors((tpot + (f - 1.0) * own_s)[here], tpot_s[here]))) for f in FACTORS]
            least = int(np.argmin(errors))
            of[name] = {"factor": float(FACTORS[least]), "median_ape": errors[least]}
        found[label] = {"median_ape": float(np.median(_errors(tpot[here], tpot_s[here]))), "terms": of}
    return found
