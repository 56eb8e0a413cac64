"""From a module to a folded ``torch.export`` graph, before dispatch: ``linear``, attention and grouped GEMMs intact."""

import copy
import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.export.graph_signature import InputKind
from torch.utils.hooks import RemovableHandle

from autoshard._torch import no_stack_traces
from autoshard.errors import AutoshardError, UnsupportedModelError
from autoshard.tracing.config_check import one_line, quiet_transformers
from autoshard.tracing.fold import Stack, folded
from autoshard.tracing.routing import BalancedRouting

TRACE_BATCH = 2
"""Sequences in a trace. Not one: dimensions of size one vanish."""
TRACE_LENGTH = 64
"""Tokens per sequence in a trace."""
_LONGER = 4
"""How many times longer the second trace of a model is of which the first did not reach every parameter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """The folded graph of a model.

    ``module`` is the graph module; placeholders stand for parameters, buffers and ``input_ids``. ``parameters`` and
    ``buffers`` give the FQN of a placeholder by node name. ``owners`` gives the FQN of the module that ran a node.
    ``returns_more`` are the layers (first of their kind) that return something else than one tensor.
    """

    module: fx.GraphModule
    parameters: dict[str, str]
    buffers: dict[str, str]
    owners: dict[str, str]
    stacks: tuple[Stack, ...]
    length: int = TRACE_LENGTH
    returns_more: frozenset[str] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens in the traced batch."""
        return TRACE_BATCH * self.length


class _Logits(nn.Module):
    """``input_ids -> logits``, whatever the model returns."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        takes_cache = "use_cache" in inspect.signature(model.forward).parameters
        self.options: dict[str, Any] = {"use_cache": False} if takes_cache else {}

    def forward(self, input_ids: Tensor) -> Tensor:
        with BalancedRouting():
            out = self.model(input_ids, **self.options)
        out = getattr(out, "logits", out)
        while isinstance(out, (tuple, list)):
            out = out[0]
        return out  # type: ignore[no-any-return]


def export_graph(model: nn.Module, *, bare: bool = False) -> ExportedModel:
    """Trace ``model`` (on any device; it is left as it is) on meta tensors, repeated layers folded.

    ``bare`` leaves out the graph inputs of repeated layers' parameters. Some models use parameters only on longer
    sequences (to pool every so many tokens into one key, say): if a trace leaves any unused, a longer one that reaches
    more of them takes its place.

    Raises:
        UnsupportedModelError: if ``torch.export`` cannot trace the model, with the first line of its reason.
    """
    if any(p.device.type != "meta" for p in model.parameters()):
        model = meta_copy(model)
    exported = _export(model, TRACE_LENGTH, bare=bare)
    unused = _num_unused(exported)
    if unused:
        try:
            longer = _export(model, _LONGER * TRACE_LENGTH, bare=bare)
        except UnsupportedModelError:
            return exported
        return longer if _num_unused(longer) < unused else exported
    return exported


def _num_unused(exported: ExportedModel) -> int:
    """Parameters of the first layer of every kind, and outside layers, that no node reads."""
    repeated = {f"{layer}." for stack in exported.stacks for kind in stack.kinds for layer in kind[1:]}
    count = 0
    for node in exported.module.graph.nodes:
        name = exported.parameters.get(node.name)
        if name is not None and not node.users and not any(name.startswith(layer) for layer in repeated):
            count += 1
    return count


def _export(model: nn.Module, length: int, *, bare: bool) -> ExportedModel:
    """One trace with sequences of ``length`` tokens."""
    wrapper = _Logits(model).eval()
    input_ids = torch.zeros(TRACE_BATCH, length, dtype=torch.long, device="meta")
    with (
        traceable_kernels(model),
        quiet_transformers(),
        torch.no_grad(),
        no_stack_traces(),
        folded(wrapper, bare=bare) as stacks,
    ):
        more, hooks = _note_results(wrapper, [kind[0] for stack in stacks for kind in stack.kinds])
        try:
            program = torch.export.export(wrapper, (input_ids,), strict=False)
        except AutoshardError:
            raise
        except Exception as error:
            raise UnsupportedModelError(f"{type(model).__name__} cannot be traced: {one_line(error)}") from error
        finally:
            for hook in hooks:
                hook.remove()
    for node in program.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, Tensor) and not all(isinstance(size, int) for size in value.shape):
            raise UnsupportedModelError(
                f"{type(model).__name__} cannot be traced: the size of a tensor in {_owner(node) or 'the model'} "
                "depends on data"
            )
    kinds = {InputKind.PARAMETER: {}, InputKind.BUFFER: {}}  # type: dict[InputKind, dict[str, str]]
    for spec in program.graph_signature.input_specs:
        if spec.kind in kinds and spec.target is not None:
            kinds[spec.kind][spec.arg.name] = _strip(spec.target)
    return ExportedModel(
        module=program.graph_module,
        parameters=kinds[InputKind.PARAMETER],
        buffers=kinds[InputKind.BUFFER],
        owners={n.name: _owner(n) for n in program.graph.nodes if n.op == "call_function"},
        stacks=tuple(
            Stack(
                layers=tuple(map(_strip, s.layers)),
                kinds=tuple(tuple(map(_strip, k)) for k in s.kinds),
            )
            for s in stacks
        ),
        length=length,
        returns_more=frozenset(map(_strip, more)),
    )


def _note_results(model: nn.Module, names: list[str]) -> tuple[set[str], list[RemovableHandle]]:
    """Those of the modules that return something else than a tensor (once they run), and the hooks that note it."""
    more: set[str] = set()

    def note(name: str) -> RemovableHandle:
        def hook(_module: nn.Module, _args: Any, out: Any) -> None:
            if not isinstance(out, Tensor):
                more.add(name)

        return model.get_submodule(name).register_forward_hook(hook)

    return more, [note(name) for name in names]


def meta_copy(model: nn.Module) -> nn.Module:
    """A structural copy of ``model`` on the meta device; weights are not copied, ties between them are kept."""
    memo: dict[int, Any] = {}
    for p in model.parameters():
        memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
    for b in model.buffers():
        memo[id(b)] = torch.empty_like(b, device="meta")
    return copy.deepcopy(model, memo)


def _strip(name: str) -> str:
    """An FQN without the wrapper's attribute."""
    return name.removeprefix("model.")


def _owner(node: fx.Node) -> str:
    """FQN of the innermost module that ran ``node`` (empty for the model itself)."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    fqn = str(stack[-1][0]) if stack else ""
    return "" if fqn == "model" else _strip(fqn)


@contextmanager
def traceable_kernels(model: nn.Module) -> Iterator[None]:
    """Run transformers' experts as grouped GEMMs and attention as SDPA, where the model has them.

    The default loop over experts depends on data and cannot be traced; eager attention hides what it computes.
    """
    config: Any = getattr(model, "config", None)
    wanted = {"_experts_implementation": "grouped_mm"}
    if getattr(model, "_supports_sdpa", False):
        wanted["_attn_implementation"] = "sdpa"
    before = {key: getattr(config, key, None) for key in wanted}
    changed = [key for key in wanted if before[key] is not None and before[key] != wanted[key]]
    for key in changed:
        setattr(config, key, wanted[key])
    try:
        yield
    finally:
        for key in changed:
            setattr(config, key, before[key])
