"""The one door for private torch names. Each says which of the supported versions (2.11 to 2.14) have it.

======================================= ==========================================================================
`StridedShard`                          ``torch.distributed.tensor.placement_types._StridedShard``, 2.5 and later
`FakeStore`                             ``torch.testing._internal.distributed.fake_pg``, 1.13 and later
`flattened`                             ``DeviceMesh._flatten``, 2.5 and later (2.6: flattening again returns the same)
`concatenated`                          ``DeviceMesh._concatenate``, 2.10 and later
`as_process_group`                      ``ProcessGroup.unbox``, 2.1 and later
`group_by_name`                         ``torch.distributed.distributed_c10d._resolve_process_group``, 2.2 and later
`no_stack_traces`                       ``torch.fx.config.do_not_emit_stack_traces``, 2.13; before, it does nothing
`is_fake`                               ``torch._subclasses.fake_tensor.FakeTensor``, 2.0 and later
`DispatchMode`                          ``torch.utils._python_dispatch``, 1.13 and later
`threads_as_ranks`                      ``ThreadLocalWorld`` of ``torch.testing._internal`` and the thread isolation of
                                        the registry of groups, 2.1 and later
`READ_VALUE`                            ``torch.ops.aten._local_scalar_dense``, all versions
`reduces_by_sum`                        ``op()`` of the script object of a reduce operation, 2.9 and later
======================================= ==========================================================================
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed.distributed_c10d as c10d
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed import ProcessGroup, ReduceOp
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.placement_types import _StridedShard as StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.testing._internal.distributed.multi_threaded_pg import ThreadLocalWorld
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = [
    "READ_VALUE",
    "DispatchMode",
    "FakeStore",
    "StridedShard",
    "as_process_group",
    "concatenated",
    "flattened",
    "group_by_name",
    "is_fake",
    "no_stack_traces",
    "reduces_by_sum",
    "threads_as_ranks",
]

READ_VALUE = torch.ops.aten._local_scalar_dense.default
"""The operator behind ``.item()`` and ``bool(tensor)``."""


def flattened(mesh: DeviceMesh, dims: Sequence[str], name: str) -> DeviceMesh:
    """The consecutive dims of a root mesh as one dim called ``name``; asked again it gives the same mesh and group.

    Views are kept on the mesh they are of: slicing one takes milliseconds, and equal meshes of ranks that are threads
    must not share them.
    """
    kept: dict[tuple[str, ...], DeviceMesh] = mesh.__dict__.setdefault("_autoshard_views", {})
    key = (*dims, name)
    if key not in kept:
        kept[key] = mesh[name] if tuple(dims) == (name,) else mesh[tuple(dims)]._flatten(name)
    return kept[key]


def concatenated(meshes: Sequence[DeviceMesh]) -> DeviceMesh:
    """One mesh with the dims of several views of one root, in order.

    ``root["dp", "tp"]`` gives the same for flattened dims, with a deprecation warning of torch.
    """
    return meshes[0] if len(meshes) == 1 else DeviceMesh._concatenate(list(meshes))


class DispatchMode(TorchDispatchMode):
    """A `TorchDispatchMode` with a typed constructor, and without the wrapper that keeps torch.compile out of it.

    The wrapper costs more than the logging, and nothing is compiled here (``_should_skip_dynamo``, 2.7 and later;
    unused before).
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()  # type: ignore[no-untyped-call]


def is_fake(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a shape and a device but no numbers."""
    return isinstance(tensor, FakeTensor)


def group_by_name(name: str) -> ProcessGroup:
    """The process group that functional collectives call ``name``."""
    return c10d._resolve_process_group(name)  # type: ignore[attr-defined, arg-type]


def as_process_group(value: Any) -> ProcessGroup | None:
    """The process group in an argument of a ``c10d`` operator; None if the argument is something else."""
    if not isinstance(value, torch.ScriptObject):
        return None
    try:
        return ProcessGroup.unbox(value)
    except RuntimeError:  # another script object, such as the reduce operation
        return None


@contextmanager
def threads_as_ranks() -> Iterator[None]:
    """Within it every thread has process groups of its own, so that a thread can be a rank.

    The process' own groups are out of sight and come back afterwards, and so does how it reports exceptions: every
    group that is made puts another "[rank0]:" before each line.
    """
    before, report = c10d._world, sys.excepthook
    c10d._world = ThreadLocalWorld()  # type: ignore[assignment]
    torch._C._distributed_c10d._set_thread_isolation_mode(True)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._distributed_c10d._set_thread_isolation_mode(False)  # type: ignore[attr-defined]
        c10d._world, sys.excepthook = before, report


def reduces_by_sum(args: tuple[Any, ...]) -> bool:
    """Whether the reduction among an operator's arguments (object or name) is a sum; True where there is none."""
    for value in args:
        if isinstance(value, torch.ScriptObject) and hasattr(value, "op"):
            return bool(value.op() == int(ReduceOp.SUM.value))
    return not any(isinstance(a, str) and a.lower() in ("avg", "max", "min", "product") for a in args)


@contextmanager
def no_stack_traces() -> Iterator[None]:
    """Graphs traced meanwhile do not say for every node which lines of the model made it: a sixth of tracing's time."""
    config: Any = fx.config
    before = getattr(config, "do_not_emit_stack_traces", None)
    if before is not None:
        config.do_not_emit_stack_traces = True
    try:
        yield
    finally:
        if before is not None:
            config.do_not_emit_stack_traces = before
