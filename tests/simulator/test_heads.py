"""A recurrent mixer by heads: its state, parameters and time are shared out."""

from dataclasses import replace

import numpy as np

from autoshard.hardware import parse_cluster
from autoshard.ir import BLOCK_INPUT, Block, Dim, HeadSplit, Linear, Mixer, OpGraph, Param
from autoshard.simulator import Simulator, terms
from autoshard.workload import Workload
from tests.graphs import mixtral_like


def _graph() -> OpGraph:
    """Mixtral with a layer's attention replaced by a mixer of 8 heads; 1 MB of state a sequence and layer."""
    base = mixtral_like()
    (block,) = base.blocks
    hidden, wide = Dim(name="hidden", size=4096), Dim(name="features", size=8192)

    def weight(name: str, *shape: int, parts: tuple[int, ...] = ()) -> Param:
        return Param(fqn=f"model.layers.0.mixer.{name}", shape=shape, dtype="bfloat16", parts=parts)

    core = Mixer(
        name="mixer",
        fqn="model.layers.0.mixer",
        inputs=("mixer_in",),
        params=(weight("A_log", 8, parts=(8,)), weight("conv", 8192, 4, parts=(4096, 4096))),
        variety="recurrent",
        width=hidden,
        state_bytes=2.0**20,
        state_elements=2**18,
        split=HeadSplit(size=8),
    )
    ops = (
        Linear(
            name="mixer_in", fqn="model.layers.0.mixer.in_proj", inputs=(BLOCK_INPUT,), in_dim=hidden, out_dim=wide,
            packed=2, params=(weight("in_proj.weight", 8192, 4096),),
        ),
        core,
        Linear(
            name="mixer_out", fqn="model.layers.0.mixer.out_proj", inputs=("mixer",), in_dim=hidden, out_dim=hidden,
            params=(weight("out_proj.weight", 4096, 4096),),
        ),
    )  # fmt: skip
    first = next(i for i, op in enumerate(block.ops) if op.name == "attn_add")
    add = replace(block.ops[first], inputs=(BLOCK_INPUT, "mixer_out"))
    return replace(
        base, blocks=(Block(name=block.name, ops=(*ops, add, *block.ops[first + 1 :]), instances=block.instances),)
    )


def test_state_and_time_of_a_mixer_halve_with_tp_2() -> None:
    graph = _graph()
    num_layers = len(graph.layers)
    sim = Simulator(
        graph, parse_cluster("H100x2"), Workload(context=100), fixed={"tp": 2, "ep": 2, "pp": 1, "batch": 4}
    )

    def dims(**choices: int | None) -> np.ndarray:
        return np.array([[v.choices.index(choices.get(v.key.split("/")[1])) for v in sim.variables]])

    whole, split = dims(), dims(mixer=0, mixer_in=0, mixer_out=1)
    a, b = (sim.evaluate(np.array([0]), d) for d in (whole, split))
    # four sequences in flight, 2**20 bytes of state each and layer, all of it or one half
    assert float(a.kv_bytes[0]) == 4 * 2**20 * num_layers
    assert float(b.kv_bytes[0]) == 4 * 2**19 * num_layers
    # in and out matrices, 8 decays and 8192 x 4 taps, halved: 2 bytes each
    own = 8192 * 4096 + 4096 * 4096 + 8 + 8192 * 4
    assert float(a.weights_bytes[0]) - float(b.weights_bytes[0]) == num_layers * 2 * own / 2
    seconds = [
        {(t.label, t.what): t.seconds for t in terms(sim, 0, tuple(d[0].tolist()))}["mixer", "mixer"]
        for d in (whole, split)
    ]
    assert seconds[1] < seconds[0]
