"""The passes of measured runs, priced by the simulator's own tables: a decode step, and those over one prompt."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from autoshard.calibrate.optimise import FloatArray
from autoshard.calibrate.serving.rows import Run
from autoshard.calibrate.tables import BoolArray
from autoshard.cost import serving_law
from autoshard.errors import InvalidInputError
from autoshard.hardware import known_devices, parse_cluster
from autoshard.ir import OpGraph
from autoshard.sharding.patterns import pattern_strategy
from autoshard.simulator.lengths import Lengths, chunk_lengths, own_lengths
from autoshard.simulator.points import Points, points_at
from autoshard.simulator.tables import build_tables
from autoshard.simulator.variables import ILLEGAL_S
from autoshard.workload import Workload

TERMS = ("experts", "projections", "attention", "collectives", "small ops")
"""What the seconds of a pass are opened into."""
_TERM_OF = {
    "experts": "experts",
    "linear": "projections",
    "router": "projections",
    "attention": "attention",
    "latent_attention": "attention",
    "indexer": "attention",
    "mixer": "attention",
    "collective": "collectives",
}


@dataclass(frozen=True, slots=True)
class Passes:
    """Seconds of runs by term: ``decode`` of one step, ``prompt`` of the passes over one prompt ([runs, terms]).

    ``requests`` in flight on an attention rank, ``osl`` tokens of an answer, ``turns`` 1 where the engine's host and
    the device take turns and 0 elsewhere.
    """

    decode: FloatArray
    prompt: FloatArray
    requests: FloatArray
    osl: FloatArray
    turns: FloatArray

    @property
    def decode_s(self) -> FloatArray:
        """Kernels and collectives of a decode step."""
        total: FloatArray = self.decode.sum(1)
        return total

    @property
    def prompt_s(self) -> FloatArray:
        """Kernels and collectives of the passes over one prompt."""
        total: FloatArray = self.prompt.sum(1)
        return total

    def without(self, term: int) -> "Passes":
        """With one term's seconds at zero."""
        kept = np.arange(len(TERMS)) != term
        return replace(self, decode=self.decode * kept, prompt=self.prompt * kept)

    def take(self, rows: BoolArray) -> "Passes":
        """Some of the runs."""
        return Passes(self.decode[rows], self.prompt[rows], self.requests[rows], self.osl[rows], self.turns[rows])


def price_runs(
    runs: Sequence[Run],
    graphs: Mapping[str, OpGraph],
    skew: float,
    progress: Callable[[str], None] = lambda _: None,
) -> Passes:
    """Price runs whose models are all in ``graphs``, in Megatron's layout, as the engines have it.

    ``skew`` is that of the popularity of experts (`autoshard.cost.moe`).

    Raises:
        InvalidInputError: for a device that is not known, or a layout that the model does not allow.
    """
    decode, prompt = np.zeros((len(runs), len(TERMS))), np.zeros((len(runs), len(TERMS)))
    groups: dict[tuple[str, str, str, str, int, int], list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault((run.model, run.device, run.engine, run.label, run.isl, run.osl), []).append(i)
    for number, (key, index) in enumerate(groups.items()):
        progress(f"pricing {key[0]} on {key[1]} ({number + 1} of {len(groups)} groups)")
        decode[index], prompt[index] = _price_group([runs[i] for i in index], graphs[key[0]], skew)
    return Passes(
        decode,
        prompt,
        np.array([run.requests for run in runs]),
        np.array([float(run.osl) for run in runs]),
        np.array([float(run.turns) for run in runs]),
    )


def _price_group(runs: Sequence[Run], graph: OpGraph, skew: float) -> tuple[FloatArray, FloatArray]:
    first = runs[0]
    if first.device not in known_devices():
        raise InvalidInputError(
            f"row {first.line}: unknown device {first.device!r}: known are {', '.join(known_devices())}"
        )
    cluster = parse_cluster(f"{first.device}x{max(run.gpus for run in runs)}")
    law = replace(serving_law(first.engine), routing_skew=skew)
    routed = any(op.kind == "experts" for _, op in graph.all_ops())
    workload = Workload(
        phase="serve",
        isl=first.isl,
        osl=first.osl,
        dtype="bfloat16" if first.label in ("", "bf16", "fp4") else "float8_e4m3fn",
        kv_dtype=first.kv_dtype,
        engine=first.engine,
    )
    layouts = [(r.dp, r.tp, r.ep if routed else r.dp) for r in runs]
    points = points_at(graph, cluster, layouts, [r.requests for r in runs])

    def price(lengths: Lengths) -> FloatArray:
        variables, parts = build_tables(
            graph, cluster, workload, points, {}, lengths=lengths, engine=law, formats=first.formats(routed=routed)
        )
        chosen = _megatron(graph, points, [(v.key, v.choices) for v in variables])
        found = np.zeros((len(points), len(TERMS)))
        for block in graph.components():
            for factor in parts[block.name].factors:
                if factor.what == "host":
                    continue
                term = TERMS.index(_TERM_OF.get(factor.what, "small ops"))
                found[:, term] += factor.at(np.arange(len(points)), chosen) * block.repeat
        wrong = np.flatnonzero(found.sum(1) >= ILLEGAL_S)
        if len(wrong):
            run = runs[int(wrong[0])]
            raise InvalidInputError(f"row {run.line}: {run.model} does not run at tp={run.tp} dp={run.dp} ep={run.ep}")
        return found

    prompt = price(chunk_lengths(workload, law.chunk_tokens)) * (first.isl / law.chunk_tokens)
    return price(own_lengths(workload)), prompt


def _megatron(graph: OpGraph, points: Points, keys: Sequence[tuple[str, tuple[int | None, ...]]]) -> np.ndarray:
    """Options of Megatron's layout at every point."""
    known: dict[tuple[int, int, int], list[int]] = {}
    rows = []
    for i in range(len(points)):
        degrees = points.degrees(i)
        shape = (degrees.dp, degrees.tp, degrees.ep)
        if shape not in known:
            strategy = pattern_strategy(graph, degrees, "megatron")
            known[shape] = [choices.index(strategy.choice(key)) for key, choices in keys]
        rows.append(known[shape])
    return np.array(rows)
