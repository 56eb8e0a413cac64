"""An applied model under ``torch.compile``: two ranks, one graph, the same numbers."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch._dynamo.utils import counters

from autoshard.emit import apply, device_mesh
from autoshard.emit.grouped import grouped_linear
from autoshard.sharding import Choice, Degrees
from autoshard.sharding.patterns import pattern_strategy
from autoshard.tracing import ConfigSource, trace
from tests.validate.sources import SOURCES

WORLD = 2
CASES: dict[str, tuple[Degrees, Choice]] = {
    "ep": (Degrees(tp=2, ep=2), None),
    "etp": (Degrees(tp=2, etp=2), None),
    "exchange": (Degrees(tp=2, ep=2), 0),
}


def test_rows_find_their_expert_without_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, weight = torch.randn(6, 3), torch.randn(3, 3, 4)
    counts = torch.tensor([2, 0, 3])  # rows 0 1 | none | 2 3 4, and a row of another rank
    looped = grouped_linear(rows, weight, counts)
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert torch.allclose(grouped_linear(rows, weight, counts)[:5], looped[:5], atol=1e-6)


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor) -> Tensor:
        return self.model(ids, use_cache=False).logits  # type: ignore[no-any-return]


def _rank(rank: int, found: Any) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29763")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=WORLD)
    source = SOURCES["mixtral"]
    assert isinstance(source, ConfigSource)
    source = ConfigSource(name="m", class_name=source.class_name, config={**source.config, "num_hidden_layers": 1})
    graph = trace(source.build(dtype="float32"), name="m")
    ids = torch.randint(256, (2, 6), generator=torch.Generator().manual_seed(0))
    for name, (degrees, dispatch) in CASES.items():
        model = source.build(device="cpu", dtype="float32", seed=0, experts="eager")
        graphs: list[int] = []

        def backend(captured: Any, _: Any, graphs: list[int] = graphs) -> Any:
            graphs.append(len(captured.graph.nodes))
            return captured.forward

        with torch.no_grad():
            want = Logits(model)(ids)
            strategy = pattern_strategy(graph, degrees, "megatron", dispatch=dispatch)
            apply(model, graph, strategy, device_mesh(graph, degrees, "cpu"))
            counters.clear()
            got = torch.compile(Logits(model), backend=backend)(ids)
        error = float((got - want).abs().max() / want.abs().max())
        found[f"{name}{rank}"] = (len(graphs), error, " ".join(counters["graph_break"]))
    dist.destroy_process_group()


@pytest.mark.wide
@pytest.mark.timeout(600)
def test_two_ranks_of_mixtral_are_one_graph_or_the_break_is_named() -> None:
    with mp.get_context("spawn").Manager() as manager:
        found = manager.dict()
        mp.start_processes(_rank, args=(found,), nprocs=WORLD, start_method="spawn")
        results = dict(found)
    assert len(results) == len(CASES) * WORLD
    for name, (graphs, error, breaks) in results.items():
        assert error < 1e-5, results
        if name.startswith("exchange"):  # how many rows a rank gets is read off what it is sent
            assert graphs > 1 and "_local_scalar_dense" in breaks, results
        else:
            assert (graphs, breaks) == (1, ""), results
