"""Rows of a table of serving runs: which model on what, in which layout, at which concurrency, and what was measured.

What a table leaves unsaid follows from rules: lengths noted as drawn from 0.8 to 1.0 of nominal count 0.9 of it;
weights without a label are as published, in 16 bits; ``fp8`` is block-quantised in models with routed experts and per
tensor in dense ones; ``fp4`` is mxfp4 experts and 16-bit rest; TensorRT-LLM keeps the cache of 8-bit models in 8 bits;
an engine without a version (``backend_version``) ran as was usual on the day it was ``measured``.
"""

import re
from dataclasses import dataclass

import numpy as np

from autoshard.calibrate.optimise import FloatArray
from autoshard.calibrate.tables import Table
from autoshard.cost import serving_engines, takes_turns
from autoshard.cost.formats import Formats
from autoshard.errors import InvalidInputError
from autoshard.units import MS

COLUMNS = (
    "system",
    "model_path",
    "backend",
    "precision_label",
    "isl",
    "osl",
    "concurrency",
    "tp_size",
    "attention_dp_size",
    "moe_tp_size",
    "moe_ep_size",
    "silicon_ttft_ms",
    "silicon_tpot_ms",
)
_SAME_SHAPES = {"deepseek-r1": "deepseek-v3"}
_ENDINGS = re.compile(r"-(instruct|fp8|fp4|nvfp4|bf16)$")
_MEAN_OF_DRAWN = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One row. ``ep * etp = tp * dp``; ``line`` is its line in the table, for messages.

    ``turns``: the engine's host and the device take turns (`autoshard.cost.serving.takes_turns`).
    """

    line: int
    model: str
    device: str
    engine: str
    label: str
    isl: int
    osl: int
    concurrency: float
    tp: int
    dp: int
    ep: int
    etp: int
    turns: bool = False

    @property
    def gpus(self) -> int:
        """Devices of the run."""
        return self.tp * self.dp

    @property
    def requests(self) -> float:
        """Requests in flight on one attention rank."""
        return max(self.concurrency / self.dp, 1.0)

    def formats(self, *, routed: bool) -> Formats:
        """How weights are stored."""
        if self.label == "fp8":
            word = "fp8_block" if routed else "fp8"
            return Formats(dense=word, experts=word)
        if self.label == "fp4":
            return Formats(dense="bfloat16", experts="w4a16_mxfp4")
        return Formats(dense="bfloat16", experts="bfloat16")

    @property
    def kv_dtype(self) -> str:
        """Of the cache."""
        return "float8_e4m3fn" if self.engine == "trtllm" and self.label == "fp8" else "bfloat16"


@dataclass(frozen=True, slots=True)
class Runs:
    """Rows with what was measured of them, in seconds."""

    runs: tuple[Run, ...]
    tpot_s: FloatArray
    ttft_s: FloatArray


def catalogue_name(path: str) -> str:
    """A model's name in lower case without owner and what says how it was tuned or stored."""
    name = path.rsplit("/", 1)[-1].lower()
    while _ENDINGS.search(name):
        name = _ENDINGS.sub("", name)
    return _SAME_SHAPES.get(name, name)


def read_runs(table: Table) -> Runs:
    """The rows of a table.

    Raises:
        InvalidInputError: for a cell that makes no sense; names the row.
    """
    engines = serving_engines()
    numbers = {c: table.positive(c) for c in ("isl", "osl", "concurrency", "tp_size", "attention_dp_size")}
    # Dense rows and rows of an engine without expert parallelism may leave these out.
    splits = {c: np.maximum(table.numbers(c, 1.0), 1.0) for c in ("moe_tp_size", "moe_ep_size")}
    stages = table.numbers("pp_size", 1.0)
    notes = table.text("lengths_note")
    versions, dates = table.text("backend_version"), table.text("measured")
    found = []
    for i, engine in enumerate(table.text("backend")):
        where = f"{table.name}, row {i + 2}"
        if engine not in engines:
            raise InvalidInputError(f"{where}: unknown backend {engine!r}: known are {', '.join(engines)}")
        label = table.text("precision_label")[i]
        if label not in ("", "bf16", "fp8", "fp4"):
            raise InvalidInputError(f"{where}: unknown precision_label {label!r}: known are bf16, fp8, fp4 or none")
        if stages[i] > 1:
            raise InvalidInputError(f"{where}: pp_size={stages[i]:g}: only runs on one stage are compared")
        drawn = _MEAN_OF_DRAWN if "0.8" in notes[i] else 1.0
        tp, dp = int(numbers["tp_size"][i]), int(numbers["attention_dp_size"][i])
        ep = int(splits["moe_ep_size"][i])
        try:
            turns = takes_turns(engine, versions[i], dates[i])
        except InvalidInputError as error:
            raise InvalidInputError(f"{where}: {error}") from error
        if (tp * dp) % ep:
            raise InvalidInputError(
                f"{where}: moe_ep_size={ep} does not divide tp_size x attention_dp_size = {tp * dp}"
            )
        found.append(
            Run(
                line=i + 2,
                model=catalogue_name(table.text("model_path")[i]),
                device=table.text("system")[i].split("_")[0].upper(),
                engine=engine,
                label=label,
                isl=max(round(numbers["isl"][i] * drawn), 1),
                osl=max(round(numbers["osl"][i] * drawn), 1),
                concurrency=float(numbers["concurrency"][i]),
                tp=tp,
                dp=dp,
                ep=ep,
                etp=tp * dp // ep,
                turns=turns,
            )
        )
    return Runs(tuple(found), table.positive("silicon_tpot_ms") * MS, table.positive("silicon_ttft_ms") * MS)
