"""The job file: everything the ranks need, as JSON; nothing is executed by reading it."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from autoshard.ir import OpGraph
from autoshard.sharding import Strategy


class Case(BaseModel):
    """One strategy to run. ``hook`` (``module:function``) is a context to run it in; ``notes`` go to the report."""

    model_config = ConfigDict(extra="forbid")

    name: str
    strategy: Strategy
    hook: str | None = None
    notes: tuple[str, ...] = ()


class ModelJob(BaseModel):
    """A model to build, its graph, and the cases to run on it.

    ``lengths`` are the tokens of the prompt and of every decode step, ``sequences`` the batch over all dp ranks;
    ``dtypes`` stand for the job's where given. With ``checkpoint``, the folder of a quantised one, ranks load their
    shards from it, and the unsharded model has its dequantised weights (`autoshard.validate.quantised`).
    """

    model_config = ConfigDict(extra="forbid")

    source: dict[str, Any]
    graph: OpGraph
    cases: tuple[Case, ...]
    sequences: int = 4
    lengths: tuple[int, ...] = (6, 1, 1)
    seed: int = 0
    dtypes: tuple[str, ...] | None = None
    checkpoint: str | None = None


class Job(BaseModel):
    """What one launch does: cases are compared with the unsharded model, or, with ``passes``, timed that often."""

    model_config = ConfigDict(extra="forbid")

    models: tuple[ModelJob, ...]
    dtypes: tuple[str, ...] = ("float32", "float64")
    device: str = "cpu"
    timeout_s: float = 120.0
    passes: int | None = None
