"""Costs that are not additive: each law worked out by hand, and what a step takes against a second way to count it."""

from dataclasses import replace

import numpy as np
import pytest

from autoshard.cost import serving_law
from autoshard.errors import InvalidInputError
from autoshard.hardware import parse_cluster
from autoshard.ir import Add, Block, FusedOp
from autoshard.simulator import Simulator, partition, terms
from autoshard.simulator.effects.block import BlockSeconds
from autoshard.simulator.effects.laws import HIDDEN, SKEW_LEVELS, beside_s, layer_levels, sharing_s
from autoshard.simulator.effects.model import MEAN_SKEW, ONE_BATCH, TWO_BATCH
from autoshard.simulator.effects.overlap import overlapped_s, windows
from autoshard.simulator.effects.two_batch import phases, two_batch_s
from autoshard.simulator.points import make_points
from autoshard.workload import EFFECTS, Workload, parse_effects
from tests.graphs import GraphMaker


class SharedMaker(GraphMaker):
    """Layers with experts have shared ones too, run after the routed ones, as DeepSeek's do."""

    def moe_ops(self, prefix: str) -> tuple[FusedOp, ...]:
        mlp = f"{prefix}.mlp.shared_experts"
        *routed, _ = super().moe_ops(prefix)
        return (
            *routed,
            self.linear("shared_up", f"{mlp}.up", "ffn_norm", self.hidden, self.inter),
            self.linear("shared_down", f"{mlp}.down", "shared_up", self.inter, self.hidden),
            Add(name="mlp_add", fqn=prefix, inputs=("experts_down", "shared_down"), width=self.hidden),
            Add(name="ffn_add", fqn=prefix, inputs=("attn_add", "mlp_add"), width=self.hidden),
        )


def seconds_of(block: Block, compute: dict[str, float], moves: dict[str, float], far: tuple[str, ...] = ()):
    """Seconds of a block of one strategy; ops that are not named take none."""

    def arrays(values: dict[str, float]) -> dict[str, np.ndarray]:
        return {name: np.array([[value]]) for name, value in values.items()}

    return BlockSeconds(
        compute=arrays({op.name: compute.get(op.name, 0.0) for op in block.ops}),
        inside={},
        moves=arrays(moves),
        inside_far={},
        moves_far=arrays({name: moves[name] for name in far}),
    )


def test_work_beside_a_collective_by_hand() -> None:
    # HIDDEN = 1 / 1.189. Beside 4 s of moving, 10 s of work advance by 4 HIDDEN = 3.3642 s; 6.6358 s are left: 10.6358.
    # Beside 20 s of moving the work (11.89 s at its slower speed) is done before.
    assert beside_s(np.array([10.0, 10.0]), np.array([4.0, 20.0])) == pytest.approx([10.6358, 20.0], abs=1e-4)
    assert pytest.approx(0.841043, abs=1e-6) == HIDDEN
    # 3 + 4 s on the NIC, 1 + 9 s on NVLink: the second is busy for longest.
    links = [(np.array([3.0]), np.array([4.0])), (np.array([1.0]), np.array([9.0]))]
    assert sharing_s(np.array([8.0]), links) == [10.0]


def test_a_move_is_hidden_by_what_runs_before_its_first_reader() -> None:
    block = SharedMaker().graph("m").blocks[0]
    found = windows(block)
    # q's gather runs while k and v are made, k's while v is; the attention core is the next op after v.
    assert found["q"].ops == {"k", "v"} and found["q"].moves == {"k", "v"}
    assert found["k"].ops == {"v"} and "v" not in found and "o" not in found
    # The sum over experts runs while the shared experts compute. (The norm's and the residual's next readers are next.)
    assert found["experts_down"].ops == {"shared_up", "shared_down"}
    assert set(found) == {"q", "k", "experts_down"}


def test_overlap_by_hand() -> None:
    block = SharedMaker().graph("m").blocks[0]
    compute = {"experts_down": 5.0, "shared_up": 2.0, "shared_down": 1.0}
    alone = seconds_of(block, compute, {"experts_down": 4.0})
    # Ops end at 8; the sum over experts runs from 5 to 9: the block is done at 9, and 12 - 9 = 3 s were hidden.
    assert overlapped_s(block, alone, sharing=False)[0, 0] == pytest.approx(12.0 - 3.0 * HIDDEN)
    # With a sum of 6 s over the shared experts as well (from 8 on): other streams, done at 14 of 18 s.
    both = seconds_of(block, compute, {"experts_down": 4.0, "shared_down": 6.0})
    assert overlapped_s(block, both, sharing=False)[0, 0] == pytest.approx(18.0 - 4.0 * HIDDEN)
    # On the same link the second waits until 9, so it is done at 15; on different links it does not wait.
    assert overlapped_s(block, both, sharing=True)[0, 0] == pytest.approx(18.0 - 3.0 * HIDDEN)
    apart = seconds_of(block, compute, {"experts_down": 4.0, "shared_down": 6.0}, far=("experts_down",))
    assert overlapped_s(block, apart, sharing=True)[0, 0] == pytest.approx(18.0 - 4.0 * HIDDEN)
    # What the next op reads is not hidden at all.
    exposed = seconds_of(block, compute, {"o": 3.0})
    assert overlapped_s(block, exposed, sharing=False)[0, 0] == pytest.approx(11.0)


def test_two_halves_by_hand() -> None:
    block = SharedMaker().graph("m").blocks[0]
    p = phases(block)
    assert p.experts == {"experts_up", "experts_act", "experts_down"}
    assert p.moves_leaving == {"experts_down"} and p.moves_entering == {"ffn_norm", "router"}
    half = seconds_of(
        block,
        {"attention": 5.0, "experts_up": 3.0},
        {"o": 1.0, "ffn_norm": 4.0, "experts_down": 8.0},
        far=("o", "ffn_norm"),
    )
    # a = 5 + 1 (o's sum is part of it), m = 3, d = 4, c = 8; u = 1 - HIDDEN = 0.158957
    # t(a, c) = max(8, 6 + 8 u) = 8;  t(a, d) = max(4, 6 + 4 u) = 6.635828;  t(m, d) = max(4, 3 + 4 u) = 4;  t(m, c) = 8
    assert two_batch_s(block, half, sharing=False)[0, 0] == pytest.approx(26.635828, abs=1e-5)
    # o's 1 s and d's 4 s are both between nodes: 5 s of that link fit into the 6.64 s of their slot.
    assert two_batch_s(block, half, sharing=True)[0, 0] == pytest.approx(26.635828, abs=1e-5)
    # If c crosses nodes too, o's 1 s and c's 8 s take turns: 9 instead of 8.
    half = replace(half, moves_far={**half.moves_far, "experts_down": half.moves["experts_down"]})
    assert two_batch_s(block, half, sharing=True)[0, 0] == pytest.approx(27.635828, abs=1e-5)


def test_levels_of_skew_come_equally_often() -> None:
    # Fractional parts of i * 0.618034: 0, .618, .236, .854, .472, .090, .708, .326, .944 -> thirds 0 1 0 2 1 0 2 0 2
    assert layer_levels(9) == (0, 1, 0, 2, 1, 0, 2, 0, 2)
    assert np.bincount(layer_levels(300)).tolist() == pytest.approx([100, 100, 100], abs=1)


def _simulator(kinds: str, effects: tuple[str, ...], fixed: dict[str, int], phase: str = "decode") -> Simulator:
    graph = SharedMaker(hidden=2048, intermediate=2048, experts=16).graph(kinds)
    cluster = replace(parse_cluster("H100x8"), devices_per_node=4)
    return Simulator(graph, cluster, Workload(phase=phase, context=512, effects=effects), fixed=fixed)  # type: ignore[arg-type]


def _some(sim: Simulator, seed: int = 0, count: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Random strategies of legal options each."""
    rng = np.random.default_rng(seed)
    point = rng.integers(0, len(sim.points), count)
    dims = [[rng.choice(np.flatnonzero(v.legal[p])) for v in sim.variables] for p in point]
    return point, np.array(dims)


FIXED = {"pp": 2, "dp": 2, "tp": 2, "ep": 4}


@pytest.mark.parametrize("effects", [("overlap",), ("overlap", "contention")])
def test_overlap_lies_between_nothing_hidden_and_all(effects: tuple[str, ...]) -> None:
    plain, sim = _simulator("mmm", (), FIXED), _simulator("mmm", effects, FIXED)
    point, dims = _some(sim)
    before, after = plain.evaluate(point, dims).step_s, sim.evaluate(point, dims).step_s
    fine = before < 1e9
    assert fine.sum() > 5
    assert np.all(after[fine] <= before[fine] * (1 + 1e-12)) and np.any(after[fine] < before[fine] * 0.999)
    assert np.all(after[fine] >= before[fine] * (1 - HIDDEN / 2))  # two streams hide half at most, three overlap rarely
    assert np.all(after[~fine] >= 1e9)


def test_skew_is_the_sum_over_layers_of_their_own_level() -> None:
    """The slowest stage, counted layer by layer from simulators whose layers all have one skew."""
    sim = _simulator("mmmmm", ("skew",), FIXED)
    point, dims = _some(sim)
    ok = sim.evaluate(point, dims).step_s < 1e9
    point, dims = point[ok], dims[ok]
    layer = []
    for level in SKEW_LEVELS:
        part = sim.effects.full[1]
        own = sum(
            f.at(point, dims) for f in part.component.factors if f.label not in part.levels[0] or f.what == "collective"
        )
        index = SKEW_LEVELS.index(level)
        layer.append(own + sum(f.at(point, dims) for f in part.levels[index].values()))
    # More skew is a fuller rank, but fewer experts touched: layers differ, in either direction.
    assert np.all(layer[2] != layer[0])
    assert MEAN_SKEW == serving_law("vllm").routing_skew > 0
    first, last = (sim.parts[i].seconds(point, dims) for i in (0, -1))
    levels = layer_levels(5)  # 0 1 0 2 1; stages of 3 and 2 layers (the first has the embedding, so it may have fewer)
    counts = {3: (levels[:3], levels[3:]), 2: (levels[:2], levels[2:])}
    mine = counts[partition(5, 2)[0]]
    stages = [sum(layer[level] for level in stage) for stage in mine]
    expected = 2 * (np.maximum(stages[0] + first, stages[1] + last) + sim.send_s[point, dims[:, 0]])
    assert sim.evaluate(point, dims).step_s == pytest.approx(expected, rel=1e-9)


def test_two_batches_are_taken_where_they_are_faster() -> None:
    """Prefill across nodes: halves pay; with a single sequence there are none."""
    fixed = {"pp": 1, "dp": 8, "tp": 1, "ep": 8}
    plain, sim = _simulator("mm", (), fixed, "prefill"), _simulator("mm", ("two-batch",), fixed, "prefill")
    point, dims = _some(sim, count=60)
    before, after = plain.evaluate(point, dims).step_s, sim.evaluate(point, dims).step_s
    assert np.all(after <= before * (1 + 1e-12))
    single = sim.points.sequences[point] == 1
    assert after[single] == pytest.approx(before[single], rel=1e-12)
    modes = [sim.effects.mode(int(p), tuple(d)) for p, d in zip(point, dims, strict=True)]
    faster = after < before * (1 - 1e-12)
    assert faster.any() and [m == TWO_BATCH for m in modes] == faster.tolist()


@pytest.mark.parametrize("effects", [("overlap",), ("two-batch", "skew"), EFFECTS])
def test_terms_sum_to_the_step(effects: tuple[str, ...]) -> None:
    sim = _simulator("dmm", effects, {"dp": 4, "tp": 1, "ep": 4, "pp": 2}, "prefill")
    point, dims = _some(sim, count=12)
    step_s = sim.evaluate(point, dims).step_s
    for p, d, s in zip(point, dims, step_s, strict=True):
        if s < 1e9:
            assert sum(t.seconds for t in terms(sim, int(p), tuple(d))) == pytest.approx(s, rel=1e-9)


def test_half_batches_are_rounded_up() -> None:
    sim = _simulator("mm", ("two-batch",), {"dp": 8, "tp": 1, "ep": 8, "pp": 1, "batch": 40})
    # 5 sequences a rank: halves of 3. A layer of halves costs what layers at 3 sequences a rank say.
    other = _simulator("mm", (), {"dp": 8, "tp": 1, "ep": 8, "pp": 1, "batch": 24})
    point, dims = _some(sim, count=5)
    half = sim.effects.half[1]
    assert half.component.seconds(point, dims) == pytest.approx(other.parts[1].seconds(point, dims), rel=1e-12)
    assert sim.effects.modes == (ONE_BATCH, TWO_BATCH)


def test_without_effects_nothing_changes() -> None:
    sim = _simulator("mm", (), FIXED)
    assert sim.effects is None
    assert Workload().effects == ()


@pytest.mark.parametrize(
    ("effects", "phase", "says"),
    [
        (
            "overlap,warp",
            "decode",
            "unknown effect 'warp': known are overlap, two-batch, contention, skew, all and none",
        ),
        ("contention", "decode", "'contention' needs 'overlap' or 'two-batch'"),
        ("contention,skew", "prefill", "'contention' needs 'overlap' or 'two-batch'"),
        ("skew", "serve", "effects skew are for phases 'decode' and 'prefill'"),
    ],
)
def test_effects_that_mean_nothing_are_refused(effects: str, phase: str, says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        Workload(phase=phase, isl=None if phase == "decode" else 8, osl=8 if phase == "serve" else None,
                 effects=parse_effects(effects))  # type: ignore[arg-type]  # fmt: skip


def test_effects_are_kept_once_and_in_order() -> None:
    assert Workload(effects=("skew", "overlap", "skew")).effects == ("overlap", "skew")
    assert parse_effects("all") == EFFECTS and parse_effects(None) == parse_effects("none") == ()
    assert len(make_points(SharedMaker().graph("mm"), parse_cluster("H100x8"))) > 0
