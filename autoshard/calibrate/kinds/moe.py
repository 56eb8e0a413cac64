"""Fused routed layers: top-k, permutation, two grouped products, activation, finalisation.

``num_tokens`` enter over the whole expert-parallel group, whose experts are spread over ``moe_ep_size`` ranks, each
split over ``moe_tp_size``. In ``balanced`` rows tokens are spread over experts on purpose; ``power_law_A`` rows time
the most loaded rank (`autoshard.cost.routing`).
"""

import numpy as np

from autoshard.calibrate.formats import format_of
from autoshard.calibrate.kinds.kind import TableKind, framework_labels, kernel_law
from autoshard.calibrate.optimise import FloatArray, Parameter
from autoshard.calibrate.tables import BoolArray, Table, one_in
from autoshard.cost import fused_experts_law_s, power_law_load
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, KernelLaw

_PARAMETERS = (
    Parameter("launch_s", 1.2e-5, 5e-7, 1e-4),
    Parameter("memory_efficiency", 0.85, 0.15, 1.0),
    Parameter("compute_efficiency", 0.5, 0.05, 1.0),
    Parameter("overlap", 2.0, 1.2, 8.0),
    Parameter("rows_efficiency", 0.4, 0.02, 4.0),
    Parameter("expert_s", 5e-8, 5e-10, 1e-6),
    Parameter("tile_edge", 20.0, 0.5, 200.0),
    Parameter("all_rows_efficiency", 5.0, 0.05, 50.0),
)


def _skew(distribution: str, name: str) -> float | None:
    """Exponent of a power law, None for balanced rows."""
    if distribution in {"balanced", "uniform", ""}:
        return None
    word, _, exponent = distribution.rpartition("_")
    if word == "power_law":
        try:
            alpha = float(exponent)
        except ValueError:
            alpha = 0.0
        if alpha > 1:
            return alpha
        return 1.0001  # the law's limit: log-uniform popularities
    raise InvalidInputError(f"{name}: unknown distribution {distribution!r}: known are balanced and power_law_<alpha>")


def _loads(rows: Table) -> FloatArray:
    """(Token, expert) pairs on the timed rank and experts that get any ([2, rows])."""
    tokens, experts = rows.positive("num_tokens"), rows.positive("num_experts")
    top_k, ranks = rows.positive("topk"), rows.positive("moe_ep_size")
    if np.any(experts % ranks):
        raise InvalidInputError(f"{rows.name}: moe_ep_size must divide num_experts")
    pairs = tokens * top_k / ranks
    touched = np.minimum(experts / ranks, np.maximum(pairs, 1.0))
    for i, word in enumerate(rows.text("distribution", "balanced")):
        alpha = _skew(word, rows.name)
        if alpha is not None:
            shape = (int(tokens[i]), int(experts[i]), int(top_k[i]), int(ranks[i]))
            pairs[i], touched[i] = power_law_load(*shape, alpha)
    return np.stack([np.maximum(pairs, 0.5), touched])


def _predict(cluster: Cluster, rows: Table, label: str, law: KernelLaw | None) -> FloatArray:
    framework, word = label.split("/")
    number = format_of(word, cluster.device)
    if law is None:
        law = kernel_law(cluster.device, "grouped_gemm", framework, word, number.dtype)
    pairs, touched = rows.derived("loads", lambda: _loads(rows))
    return fused_experts_law_s(
        cluster.device,
        law,
        pairs,
        rows.positive("num_tokens") * rows.positive("topk"),
        rows.positive("num_experts") / rows.positive("moe_ep_size"),
        touched,
        rows.positive("hidden_size"),
        rows.positive("inter_size") / rows.positive("moe_tp_size"),
        number.dtype,
        number.weight_bytes,
    )


def _held_out(table: Table) -> BoolArray:
    """Whole models; where the table has one model only, a quarter of its splits."""
    by_model = one_in(table, ["model"], 3)
    by_split = one_in(table, ["moe_tp_size", "moe_ep_size"], 4)
    alone = np.array([word == "w4a16_mxfp4" for word in table.text("moe_dtype")])
    return np.where(alone, by_split, by_model)


MOE = TableKind(
    name="moe",
    file="moe",
    columns=(
        "moe_dtype",
        "hidden_size",
        "inter_size",
        "topk",
        "num_experts",
        "moe_tp_size",
        "moe_ep_size",
        "num_tokens",
        "time_us",
    ),
    labels=lambda table: framework_labels(table, "moe_dtype"),
    predict=_predict,
    parameters=lambda _: _PARAMETERS,
    base=lambda _: KernelLaw(compute_efficiency=0.5, memory_efficiency=0.8, launch_s=1e-5, tile_edge=20.0),
    slot=lambda label: ("kernels", "grouped_gemm", label),
    held_out=_held_out,
    split="a third of the models (gpt-oss: a quarter of its splits)",
)
