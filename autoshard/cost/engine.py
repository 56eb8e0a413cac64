"""Serving engines: whose kernels run, what their host costs, and how prompts disturb answers."""

from dataclasses import dataclass

import numpy as np

from autoshard.cost.arrays import FloatArray, floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    name: str
    kernels: str
    all_reduce: str
    op_s: float
    sequence_s: float


def host_s(engine: Engine, num_ops: float, sequences: FloatArray) -> FloatArray:
    return engine.op_s * num_ops + engine.sequence_s * floats(sequences)


def engine_named(name: str) -> Engine:
    return {
        "vllm": Engine(name="vllm", kernels="vllm", all_reduce="vllm_graph", op_s=1.0, sequence_s=0.0),
        "sglang": Engine(name="sglang", kernels="sglang", all_reduce="sglang_graph", op_s=1.0, sequence_s=0.0),
        "trtllm": Engine(name="trtllm", kernels="trtllm", all_reduce="trtllm", op_s=1.0, sequence_s=0.0),
    }[name]


def known_engines() -> tuple[str, ...]:
    return ()
