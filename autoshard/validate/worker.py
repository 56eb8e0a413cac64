"""What one rank does: for every model, dtype and case, run unsharded and sharded and write down what it saw.

Started by `autoshard.validate.elastic`. Reads a `Job`, writes ``rank<N>.json`` beside it. What should have been seen is
not in the job: the parent compares.
"""

import contextlib
import copy
import faulthandler
import importlib
import json
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from autoshard.emit import apply, device_mesh
from autoshard.emit.axes import mesh_axes
from autoshard.emit.checkpoint import load_weights
from autoshard.emit.dispatch import identify
from autoshard.emit.steps import Axes
from autoshard.ir import ExpertsLinear, OpGraph
from autoshard.sharding import Strategy, mesh_of
from autoshard.tracing import source_from_dict
from autoshard.validate.comm_log import CommLog
from autoshard.validate.decoding import new_cache, next_logits, token_ids
from autoshard.validate.job import Case, Job, ModelJob
from autoshard.validate.lift import lift_float32, lift_parameters
from autoshard.validate.quantised import load_reference
from autoshard.validate.routed import experts_modules


class Unsharded:
    """A model in one dtype before any sharding, what it is fed, and its logits: what all cases are compared with."""

    def __init__(self, job: ModelJob, dtype: str, device: str) -> None:
        self.job = job
        self.device = device
        self.lift = lift_float32 if dtype == "float64" else contextlib.nullcontext
        # Eager experts are the definition, and the only ones that take float64.
        source = source_from_dict(job.source, trusted=True)
        self.model = source.build(device=device, dtype=dtype, seed=job.seed, experts="eager")
        if job.checkpoint is not None:
            load_reference(self.model, Path(job.checkpoint))
        if dtype == "float64":
            lift_parameters(self.model)
        vocab = max(op.vocab.size for _, op in job.graph.all_ops() if op.kind == "embedding")
        self.ids = [t.to(device) for t in token_ids(vocab, job.sequences, job.lengths, job.seed + 1)]
        with self.lift():
            cache = new_cache(self.model)
            self.reference: list[Tensor] = []
            self.routing: list[dict[str, list[list[int]]]] = []
            for ids in self.ids:
                with recorded_routing(self.model, job) as chosen:
                    logits = next_logits(self.model, ids, cache)
                assert logits is not None
                self.reference.append(logits)
                self.routing.append(chosen)

    def copy(self) -> nn.Module:
        """Another model of the same parameters and configs: applying a plan replaces them, and changes no value.

        Where ranks load a checkpoint the parameters are copied too, since `forget` overwrites them first.
        """
        kept = {id(p): p for p in self.model.parameters()} if self.job.checkpoint is None else {}
        configs = [vars(m).get(name) for m in self.model.modules() for name in ("config", "generation_config")]
        return copy.deepcopy(self.model, {**kept, **{id(c): c for c in configs if c is not None}})


class Rank:
    """One rank's work; its meshes are kept, since groups are slow to make. ``listen`` logs collectives."""

    def __init__(self, listen: Callable[[], AbstractContextManager[CommLog]] = CommLog) -> None:
        self.listen = listen
        self.meshes: dict[Any, tuple[DeviceMesh, Axes]] = {}

    def mesh(self, graph: OpGraph, strategy: Strategy, device: str) -> tuple[DeviceMesh, Axes]:
        """The mesh of the strategy's degrees and its axes, made once."""
        d = strategy.degrees
        key = (mesh_of(graph, d), d.pp)
        if key not in self.meshes:
            mesh = device_mesh(graph, d, device)
            self.meshes[key] = mesh, mesh_axes(mesh, mesh_of(graph, d))
        return self.meshes[key]

    def run(self, whole: Unsharded, case: Case) -> dict[str, Any]:
        """Errors, traffic and bytes of one case on this rank."""
        graph, strategy = whole.job.graph, case.strategy
        mesh, axes = self.mesh(graph, strategy, whole.device)
        model = apply(whole.copy(), graph, strategy, mesh)
        if whole.job.checkpoint is not None:
            forget(model)
            load_weights(model, graph, strategy, mesh, Path(whole.job.checkpoint), cast=True)
        share = whole.job.sequences // strategy.degrees.dp
        mine = slice(axes["dp"].coordinate * share, (axes["dp"].coordinate + 1) * share)
        cache, errors, traffic = new_cache(model), [], []
        for step, ids in enumerate(whole.ids):
            with self.listen() as comm, whole.lift():
                logits = next_logits(model, ids[mine], cache)
            if logits is not None:  # they come out of the last stage
                errors.append(relative_error(logits, whole.reference[step][mine]))
            traffic += traffic_of(comm, step)
        found = {"errors": errors, "traffic": traffic, "parameter_bytes": parameter_bytes(model)}
        return {**found, "routing": whole.routing} if strategy.exchange else found

    def time(self, whole: Unsharded, case: Case, passes: int) -> dict[str, Any]:
        """Seconds of every step of every pass on this rank (all begin together), and the worst error of the logits."""
        graph, strategy = whole.job.graph, case.strategy
        mesh, axes = self.mesh(graph, strategy, whole.device)
        model = apply(whole.copy(), graph, strategy, mesh)
        share = whole.job.sequences // strategy.degrees.dp
        mine = slice(axes["dp"].coordinate * share, (axes["dp"].coordinate + 1) * share)
        seconds: list[list[float]] = []
        worst = 0.0
        for _ in range(passes):
            cache = new_cache(model)
            seconds.append([])
            for step, ids in enumerate(whole.ids):
                dist.barrier()
                synchronise(whole.device)
                start = time.perf_counter()
                logits = next_logits(model, ids[mine], cache)
                synchronise(whole.device)
                seconds[-1].append(time.perf_counter() - start)
                if logits is not None:
                    worst = max(worst, relative_error(logits, whole.reference[step][mine]))
        return {"seconds": seconds, "error": worst}


def synchronise(device: str) -> None:
    """Wait for what a GPU was given to do."""
    if device == "cuda":
        torch.cuda.synchronize()


def forget(model: nn.Module) -> None:
    """Overwrite all parameters: what is right afterwards was loaded."""
    for p in model.parameters():
        (p.to_local() if isinstance(p, DTensor) else p).data.fill_(float("nan"))


@contextlib.contextmanager
def recorded_routing(model: nn.Module, job: ModelJob) -> Iterator[dict[str, list[list[int]]]]:
    """Within it the experts of every token are written down, by experts module, where any case will need them."""
    chosen: dict[str, list[list[int]]] = {}
    names = experts_modules(job.graph) if any(case.strategy.exchange for case in job.cases) else ()
    top_k = max((op.top_k for _, op in job.graph.all_ops() if isinstance(op, ExpertsLinear)), default=1)

    def recorder(name: str) -> Callable[..., None]:
        def record(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            chosen[name] = identify((*args, *kwargs.values()), top_k).experts.tolist()

        return record

    handles = [model.get_submodule(name).register_forward_pre_hook(recorder(name), with_kwargs=True) for name in names]
    try:
        yield chosen
    finally:
        for handle in handles:
            handle.remove()


def traffic_of(comm: CommLog, step: int) -> list[list[Any]]:
    """What was logged, counted: [step, kind, ranks, bytes, bytes received, count]."""
    seen = Counter((c.kind, c.ranks, c.num_bytes, c.received_bytes) for c in comm.log)
    return [[step, *what, n] for what, n in seen.items()]


def relative_error(got: Tensor, want: Tensor) -> float:
    """max|a-b| / max|b|; infinite for another shape."""
    if got.shape != want.shape:
        return float("inf")
    return float((got - want).abs().max() / want.abs().max())


def parameter_bytes(model: nn.Module) -> int:
    """Bytes of this rank's parameters, tied ones once."""
    local = {id(p): p.to_local() if isinstance(p, DTensor) else p for p in model.parameters()}
    return sum(p.numel() * p.element_size() for p in local.values())


def hook(name: str | None) -> AbstractContextManager[Any]:
    """The context manager ``module:function`` in which a case runs: how tests break something on purpose."""
    if name is None:
        return contextlib.nullcontext()
    module, _, function = name.partition(":")
    made = getattr(importlib.import_module(module), function)()
    assert isinstance(made, AbstractContextManager)
    return made


def attempt(rank: Rank, whole: Unsharded, case: Case, passes: int | None = None) -> dict[str, Any]:
    """A case's result, timed where passes are asked for.

    An exception is a result too: the launch goes on, all ranks fail alike, and the parent tells.
    """
    try:
        return rank.run(whole, case) if passes is None else rank.time(whole, case, passes)
    except Exception as error:
        if os.environ.get("AUTOSHARD_DEBUG"):
            traceback.print_exc()
        return {"exception": f"{type(error).__name__}: {error}"}


def work(job: Job, device: str) -> list[dict[str, Any]]:
    """All results of this rank, in the order of the job."""
    results: list[dict[str, Any]] = []
    rank = Rank()
    for model in job.models:
        for dtype in model.dtypes or job.dtypes:
            whole = Unsharded(model, dtype, device)
            for case in model.cases:
                with hook(case.hook):
                    results.append(attempt(rank, whole, case, job.passes))
    return results


def main(path: str) -> None:
    """Run the job at ``path`` as the rank that torchrun says."""
    job = Job.model_validate_json(Path(path).read_text())
    faulthandler.dump_traceback_later(job.timeout_s, exit=True)
    torch.set_num_threads(1)
    if job.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if job.device == "cuda" else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=min(60, job.timeout_s)))
    try:
        results = work(job, job.device)
        (Path(path).parent / f"rank{dist.get_rank()}.json").write_text(json.dumps(results))
    finally:
        dist.destroy_process_group()
        faulthandler.cancel_dump_traceback_later()
