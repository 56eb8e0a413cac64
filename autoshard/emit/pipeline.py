"""Pipeline stages: a rank keeps its own layers and hands the residual of every microbatch to the next stage.

The model's own forward runs on every rank with the same arguments; layers of other stages are stand-ins
(`autoshard.emit.foreign`). A stage's first layer takes the residual that was received instead of the stand-ins'
nothing, its last layer's result is sent on. Microbatches go through one after the other, each stage starting one as
soon as it has it: GPipe's order of forward passes, in the messages that the plan lists, one per microbatch and
boundary.

torch's own ``ScheduleGPipe`` runs the same stages (`pipeline_stage`) where all calls have one shape and no cache: it
fixes shapes when it starts, with messages of its own, and knows nothing of a cache per microbatch. So calls of the
model do not go through it.
"""

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.pipelining import PipelineStage

from autoshard.emit.axes import PIPELINE
from autoshard.emit.checkpoint.tensors import note_elsewhere
from autoshard.emit.foreign import ForeignLayer, ForeignModule, is_transformers_cache, residual_argument
from autoshard.emit.local import replace_forward
from autoshard.emit.microbatches import (
    advance,
    batch_shape,
    is_state,
    logits_of,
    own_cache,
    part_of,
    tensors_in,
    with_logits,
    without_state,
)
from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.ir import OpGraph
from autoshard.sharding import Layout, Stage, Strategy, num_microbatches
from autoshard.sharding.space import tensor_width
from autoshard.sharding.stages import layer_instances, residual_width

LogitsOn = Literal["last", "all"]
_PIPELINE = "_autoshard_pipeline"


class Handover:
    """The borders of a stage: receives the residual of the stage before it, sends to the one after."""

    def __init__(self, stage: Stage, group: ProcessGroup) -> None:
        self.stage = stage
        self.group = group
        self.sending: list[tuple[list[dist.Work], Tensor]] = []
        self.taken: Tensor | None = None
        """Set while somebody else moves the residual (`StageModule`): what came in, then what goes out."""
        self.by_hand = False
        self.probing = False

    def take(self, like: Tensor, beside: tuple[Any, ...]) -> Tensor:
        """The residual from the stage before, of the shape of ``like``, for a layer called with ``beside``."""
        if self.probing:
            raise _Reached([v for v in beside if v is not like])
        if self.by_hand:
            assert self.taken is not None
            return self.taken
        buffer = torch.empty(like.shape, dtype=like.dtype, device=like.device)
        for work in self._post(dist.irecv, buffer, self.stage.index - 1):
            work.wait()
        return buffer

    def give(self, hidden: Tensor) -> None:
        """Send the residual to the stage after, without waiting until it is there."""
        if self.by_hand:
            self.taken = hidden
            return
        hidden = hidden.contiguous()
        self.sending.append((self._post(dist.isend, hidden, self.stage.index + 1), hidden))

    def finish(self) -> None:
        """Wait until everything sent has left."""
        for works, _ in self.sending:
            for work in works:
                work.wait()
        self.sending.clear()

    def share(self, logits: Tensor) -> Tensor:
        """The last stage's logits on every stage; elsewhere ``logits`` only gives the shape."""
        last = self.stage.count - 1
        empty = torch.empty(logits.shape, dtype=logits.dtype, device=logits.device)
        held = logits.contiguous() if self.stage.has_epilogue else empty
        dist.broadcast(held, src=dist.get_global_rank(self.group, last), group=self.group)
        return held

    def _post(self, what: Callable[..., Any], tensor: Tensor, stage: int) -> list[dist.Work]:
        peer = dist.get_global_rank(self.group, stage)
        if tensor.is_meta:  # shapes only: a batch would ask the group for the device's backend
            return [what(tensor, peer, self.group)]
        works: list[dist.Work] = dist.batch_isend_irecv([dist.P2POp(what, tensor, peer, self.group)])
        return works


class _Reached(Exception):
    """What the first layer of the stage is called with, besides the residual."""

    def __init__(self, beside: list[Any]) -> None:
        super().__init__()
        self.tensors = tensors_in(beside)


class PipelinedForward:
    """The forward of a model of which this rank has one stage: microbatches in turn, one result.

    Attributes:
        logits_on: ``"last"``: other stages return None for logits; ``"all"``: the last stage broadcasts them.
    """

    def __init__(self, model: nn.Module, forward: Callable[..., Any], handover: Handover, logits_on: LogitsOn) -> None:
        self.model = model
        self.forward = forward
        self.handover = handover
        self.logits_on: LogitsOn = logits_on
        self.probed = False
        functools.update_wrapper(self, forward)  # generate() reads the signature
        self.__signature__ = inspect.signature(forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the model returns: logits (on the last stage, or all) and the caller's cache."""
        sequences, _ = batch_shape(args, kwargs)
        count = num_microbatches(self.handover.stage.count, sequences)
        if count > 1:
            kwargs = own_cache(self.model, args, kwargs)
        outputs = []
        for i in range(count):
            parts = (args, kwargs) if count == 1 else part_of((args, kwargs), i, count, sequences)
            outputs.append(self.forward(*parts[0], **parts[1]))
        self.handover.finish()
        given = (*args, *kwargs.values())
        self._check_positions(parts)
        if count > 1:
            advance(given, next(v for v in given if isinstance(v, Tensor) and v.ndim > 1))
        return with_logits(outputs[0], self._logits(outputs), given)

    def _check_positions(self, call: tuple[tuple[Any, ...], dict[str, Any]]) -> None:
        """After the first call with a cache of the model's own: does it count tokens on a stage without layer 0?

        The stage is entered once more, up to its first layer, with the filled cache and with no cache: if layers get
        the same positions and masks both times, later tokens would be put at the beginning.

        Raises:
            UnsupportedModelError: when the cache counts by a layer that this stage does not have.
        """
        caches = [v for v in (*call[0], *call[1].values()) if is_state(v) and not is_transformers_cache(v)]
        if self.probed or not caches or self.handover.stage.has_prologue:
            return
        self.probed = True
        filled = self._beside(call)
        empty = self._beside(tuple(without_state(part) for part in call))
        if filled and len(filled) == len(empty) and all(_same(a, b) for a, b in zip(filled, empty, strict=True)):
            raise UnsupportedModelError(
                f"{type(caches[0]).__name__} does not count its tokens on stage {self.handover.stage.index}, which has"
                " no layer 0: let it count by any layer it holds, or use pp=1"
            )

    def _beside(self, call: Any) -> list[Tensor]:
        """Tensors that the stage's first layer would be called with besides the residual."""
        self.handover.probing = True
        try:
            self.forward(*call[0], **call[1])
        except _Reached as reached:
            return reached.tensors
        finally:
            self.handover.probing = False
        raise AssertionError("a forward without the stage's layers")

    def _logits(self, outputs: list[Any]) -> Tensor | None:
        if self.logits_on == "last" and not self.handover.stage.has_epilogue:
            return None
        logits = torch.cat([logits_of(o) for o in outputs]) if len(outputs) > 1 else logits_of(outputs[0])
        return self.handover.share(logits) if self.logits_on == "all" else logits


class StageModule(nn.Module):
    """This rank's stage as a module of tensors: ids -> residual, residual -> residual, or residual -> logits.

    For torch's pipeline schedules. Every stage needs the ids of a microbatch for their shape and positions only, so
    stages after the first make up ids of the residual's shape: attention is causal and positions start at 0.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.pipeline = pipeline_of(model)

    def forward(self, x: Tensor) -> Tensor:
        """Ids (b, s) on the first stage, else the residual (b, s, h), to what the stage passes on."""
        handover = self.pipeline.handover
        ids = x if handover.stage.has_prologue else torch.zeros(x.shape[:2], dtype=torch.long, device=x.device)
        options = {"use_cache": False} if hasattr(getattr(self.model, "config", None), "to_dict") else {}
        handover.by_hand, handover.taken = True, x
        try:
            output = self.pipeline.forward(ids, **options)
            out = logits_of(output) if handover.stage.has_epilogue else handover.taken
        finally:
            handover.by_hand, handover.taken = False, None
        assert out is not None
        return out


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.equal(a, b))


def pipeline_of(model: nn.Module) -> PipelinedForward:
    """The pipeline of a model that was applied with pp > 1. Raises InvalidInputError for another model."""
    found = getattr(model, _PIPELINE, None)
    if found is None:
        raise InvalidInputError("this model runs in one stage: it was applied with pp=1, or not at all")
    assert isinstance(found, PipelinedForward)
    return found


def pipeline_stage(model: nn.Module) -> PipelineStage:
    """This rank's stage for a schedule of ``torch.distributed.pipelining``, such as ``ScheduleGPipe``.

    Every call of a schedule has one shape, and no cache. On the first stage ``schedule.step(ids)``, elsewhere
    ``schedule.step()``; the last stage's returns logits.

    Raises:
        InvalidInputError: for a model that was not applied with pp > 1.
    """
    handover = pipeline_of(model).handover
    device = next(model.parameters()).device
    return PipelineStage(StageModule(model), handover.stage.index, handover.stage.count, device, group=handover.group)


@contextmanager
def logits_everywhere(model: nn.Module) -> Iterator[None]:
    """Within it every stage returns the logits; nothing changes for a model in one stage."""
    pipeline: PipelinedForward | None = getattr(model, _PIPELINE, None)
    if pipeline is None:
        yield
        return
    before, pipeline.logits_on = pipeline.logits_on, "all"
    try:
        yield
    finally:
        pipeline.logits_on = before


def keep_stage(model: nn.Module, graph: OpGraph, strategy: Strategy, stage: Stage, device: str) -> None:
    """Put stand-ins in place of everything that other stages hold, so that its parameters can be freed.

    ``device`` is where the model will run, unless it is on meta.
    """
    width = _local_width(graph, strategy)
    for number, (block, instance) in enumerate(layer_instances(graph)):
        if not stage.first <= number < stage.end:
            name = block.instances[instance]
            _replace(model, name, ForeignLayer(model.get_submodule(name), width, name))
    ends = ((graph.prologue, stage.has_prologue), (graph.epilogue, stage.has_epilogue))
    for op in (op for block, held in ends if not held for op in block.ops if op.params):
        owner = op.params[0].fqn.rpartition(".")[0]
        parameter = next(model.get_submodule(owner).parameters())
        where = "meta" if parameter.is_meta else device
        whole = tensor_width(op)
        shown = width if whole == residual_width(graph) else whole
        _replace(model, owner, ForeignModule(shown, parameter.dtype, where))


def _local_width(graph: OpGraph, strategy: Strategy) -> int:
    """Features of the residual stream on one rank."""
    whole = residual_width(graph)
    return whole // strategy.degrees.tp if strategy.residual is Layout.SHARDED else whole


def _replace(model: nn.Module, name: str, module: nn.Module) -> None:
    note_elsewhere(module, model.get_submodule(name))
    parent, _, child = name.rpartition(".")
    model.get_submodule(parent)._modules[child] = module


def emit_pipeline(
    model: nn.Module, graph: OpGraph, strategy: Strategy, stage: Stage, mesh: DeviceMesh, logits_on: LogitsOn
) -> None:
    """Join this rank's stage (its modules emitted already) to the others; ``model``'s forward becomes pipelined."""
    handover = Handover(stage, mesh.get_group(PIPELINE))
    width = _local_width(graph, strategy)
    names = [block.instances[instance] for block, instance in layer_instances(graph)]
    if not stage.has_prologue:
        _take_before(model.get_submodule(names[stage.first]), width, names[stage.first], handover)
    if not stage.has_epilogue:
        _give_after(model.get_submodule(names[stage.end - 1]), width, names[stage.end - 1], handover)
    pipeline = PipelinedForward(model, model.forward, handover, logits_on)
    model.forward = pipeline
    setattr(model, _PIPELINE, pipeline)


def _take_before(layer: nn.Module, width: int, where: str, handover: Handover) -> None:
    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            before = residual_argument(args, kwargs, width, where)
            hidden = handover.take(before, (*args, *kwargs.values()))
            swapped = tuple(hidden if a is before else a for a in args)
            return forward(*swapped, **{k: hidden if v is before else v for k, v in kwargs.items()})

        return run

    replace_forward(layer, make)


def _give_after(layer: nn.Module, width: int, where: str, handover: Handover) -> None:
    def make(forward: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            out = forward(*args, **kwargs)
            if not isinstance(out, Tensor) or out.shape[-1] != width:
                raise UnsupportedModelError(
                    f"{where} returns {type(out).__name__}, not the residual stream alone: its model runs with pp=1"
                )
            handover.give(out)
            return out

        return run

    replace_forward(layer, make)
