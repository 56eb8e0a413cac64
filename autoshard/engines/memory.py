"""The memory of one rank, opened into terms, and how many requests of a length it holds.

Of the stages of a pipeline the fullest counts for weights, and the one with the least room for its cache for
concurrency: the KV capacity is the minimum over stages. ``fits`` means weights, workspace and one request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.engines.cache import request_bytes
from autoshard.engines.legality import Judge, Launch
from autoshard.engines.weights import Placement, Sites, WeightBytes
from autoshard.ir import Activation, Add, Block, ExpertsLinear, Linear, OpGraph, Router
from autoshard.sharding.degrees import partition
from autoshard.sharding.space import tensor_width
from autoshard.units import GIB

ACTIVATION_BYTES = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RankMemory:
    """Bytes on a rank of the stage that binds.

    ``request`` is what one request of the context holds; ``budget`` what the engine's rule leaves to the cache;
    ``free`` what is left of the device beside everything but the cache. ``prediction`` is the part of ``weights`` that
    multi-token prediction takes.
    """

    weights: WeightBytes
    prediction: float
    activations: float
    context: float
    communication: float
    graphs: float
    request: float
    budget: float
    capacity: float
    stage: int

    @property
    def fixed(self) -> float:
        """Everything but the cache."""
        return self.weights.total + self.activations + self.context + self.communication + self.graphs

    @property
    def total(self) -> float:
        """With one request."""
        return self.fixed + self.request

    @property
    def max_concurrency(self) -> float:
        """Requests of the context that the budget holds, per dp rank; 0 if it holds none at all."""
        if self.budget <= 0:
            return 0.0
        return self.budget / self.request if self.request else float("inf")

    @property
    def fits(self) -> bool:
        """Whether weights, workspace and one request fit, both in the engine's budget and in the device."""
        return self.request <= self.budget and self.total <= self.capacity

    def to_dict(self) -> dict[str, Any]:
        """As JSON data: bytes by term."""
        w = self.weights
        return {
            "weights": w.total,
            "weights_by_part": {"experts": w.experts, "embedding": w.embedding, "other": w.other, "scales": w.scales},
            "prediction": self.prediction,
            "activations": self.activations,
            "context": self.context,
            "communication": self.communication,
            "graphs": self.graphs,
            "request": self.request,
            "kv_budget": self.budget,
            "total": self.total,
            "capacity": self.capacity,
            "stage": self.stage,
        }


class MemoryModel:
    """Memory of one launch at any degrees."""

    def __init__(self, launch: Launch, *, context: int, kv_dtype: str) -> None:
        self.launch, self.context, self.kv_dtype = launch, context, kv_dtype
        self._judge = Judge(launch)
        self._sites = Sites(launch.graph)

    def at(self, *, pp: int, dp: int, tp: int, ep: int, etp: int) -> RankMemory:
        """Memory of the stage with the least room for its cache, per request of the context.

        Degrees need not be legal: shards are rounded up, so that it can be said whether a plan would have fitted.
        """
        facts = self._judge.facts(pp=pp, dp=dp, tp=tp, ep=ep, etp=etp)
        stages = self._stages(facts)
        activations = self._activations(facts)
        found = [
            self._stage(i, weights, prediction, request, activations, facts)
            for i, (weights, prediction, request) in enumerate(stages)
        ]
        return min(found, key=lambda m: (m.fits, m.max_concurrency, m.budget))

    def _stages(self, facts: Mapping[str, Any]) -> list[tuple[WeightBytes, float, float]]:
        """(weights, those of multi-token prediction, request) bytes of every stage."""
        graph, engine = self.launch.graph, self.launch.engine
        place = Placement(self._sites, engine, self.launch.scheme, facts)
        pp = min(int(facts["pp"]), len(graph.layers))
        slack = float(engine.memory.window_slack.value({**facts, "budget_tokens": self._tokens(facts)}))
        layer = [place.block_bytes(b) for b in graph.blocks]
        request = [
            request_bytes(
                b,
                context=self.context,
                kv_dtype=self.kv_dtype,
                engine=engine,
                facts=facts,
                window_slack=slack,
            )
            for b in graph.blocks
        ]
        first, last = place.block_bytes(graph.prologue), place.block_bytes(graph.epilogue, own_aliases=pp > 1)
        found, start = [], 0
        for stage, count in enumerate(partition(len(graph.layers), pp)):
            kinds = graph.layers[start : start + count]
            start += count
            weights, held, extra = WeightBytes(), 0.0, 0.0
            for kind in kinds:
                weights = weights + layer[kind]
                held += request[kind]
            if stage == 0:
                weights = weights + first
            if stage == pp - 1:
                weights = weights + last
                mtp = float(facts.get("mtp", 0))
                if mtp:
                    more, more_held = self._prediction(place, layer, request)
                    weights, held, extra = weights + more * mtp, held + more_held * mtp, more.total * mtp
            found.append((weights, extra, held))
        return found

    def _prediction(
        self, place: Placement, layer: list[WeightBytes], request: list[float]
    ) -> tuple[WeightBytes, float]:
        """One layer of multi-token prediction: the model's last layer, and the matrix that joins its two inputs."""
        kind = self.launch.graph.layers[-1]
        hidden = float(place.facts["hidden"])
        return layer[kind] + WeightBytes(other=2.0 * hidden * hidden * ACTIVATION_BYTES), request[kind]

    def _tokens(self, facts: Mapping[str, Any]) -> float:
        return float(self.launch.engine.memory.max_num_tokens.value(facts))

    def _activations(self, facts: Mapping[str, Any]) -> float:
        memory = self.launch.engine.memory
        sequences = float(memory.max_num_seqs.value(facts))
        passing = forward_bytes(
            self.launch.graph, tokens=self._tokens(facts), dp=int(facts["dp"]), tp=int(facts["tp"]), ep=int(facts["ep"])
        )
        # Sampling comes after the pass has given its buffers back.
        return max(passing, sequences * float(facts["vocab"]) * memory.logits_bytes)

    def _stage(
        self,
        stage: int,
        weights: WeightBytes,
        prediction: float,
        request: float,
        activations: float,
        facts: Mapping[str, Any],
    ) -> RankMemory:
        memory = self.launch.engine.memory
        total = self.launch.cluster.device.memory_bytes
        context = memory.context * GIB
        communication = float(memory.communication.value(facts)) * GIB if int(facts["world"]) > 1 else 0.0
        graphs = float(memory.graphs.value(facts)) * GIB
        fraction = float(facts.get("fraction", 0)) or float(memory.fraction.value(facts))
        other = context + communication + (graphs if memory.graphs_in_budget.value(facts) else 0.0)
        if memory.budget == "of_static":
            budget = fraction * (total - context - communication) - weights.total
        elif memory.budget == "of_free":
            budget = fraction * (total - weights.total - activations - other)
        else:
            budget = fraction * total - weights.total - activations - other
        return RankMemory(
            weights=weights,
            prediction=prediction,
            activations=activations,
            context=context,
            communication=communication,
            graphs=graphs,
            request=request,
            budget=budget,
            capacity=total,
            stage=stage,
        )


def forward_bytes(graph: OpGraph, *, tokens: float, dp: int, tp: int, ep: int) -> float:
    """Bytes of the activations of one layer's pass over ``tokens`` tokens of every dp rank.

    The residual twice, the widest tensor that a rank's matrices make, and, with routed experts, the tokens gathered
    from all dp ranks and a rank's share of (token, expert) rows at full width (experts are loaded evenly).
    """
    hidden = max((op.width.size for _, op in graph.all_ops() if isinstance(op, Add)), default=0)
    widest = max((_made_width(block, tp) for block in graph.blocks), default=0.0)
    total = tokens * (2.0 * hidden + widest) * ACTIVATION_BYTES
    ups = [op for _, op in graph.all_ops() if isinstance(op, ExpertsLinear) and op.stage == "up"]
    if ups:
        inner = max(op.out_dim.size for op in ups)
        inner += max(
            (op.width.size for _, op in graph.all_ops() if isinstance(op, Activation) and op.routed), default=0
        )
        pairs = tokens * dp * max(op.top_k for op in ups) / ep
        total += (tokens * dp * hidden if dp > 1 else 0.0) * ACTIVATION_BYTES
        total += pairs * (inner / max(dp * tp // ep, 1) + hidden) * ACTIVATION_BYTES
    return total


def _made_width(block: Block, tp: int) -> float:
    """Twice the widest tensor that a dense matrix of the block makes on one of tp ranks."""
    widths = [
        tensor_width(op) for op in block.ops if isinstance(op, Linear | Router) and not getattr(op, "is_head", False)
    ]
    return 2.0 * max(widths, default=0) / tp
