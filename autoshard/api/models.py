"""From whatever a user calls a model to its source and its operator graph."""

from pathlib import Path
from typing import Any

from torch import nn

from autoshard import catalogue
from autoshard.errors import InvalidInputError, UnsupportedModelError
from autoshard.ir import OpGraph
from autoshard.tracing import ModelSource, resolve, trace, trace_source


def source_of(model: Any) -> ModelSource:
    """The source of a model: a catalogue name, path, ``package.module:factory``, transformers config or module.

    Raises:
        InvalidInputError: for anything else, or values that do not describe a model.
        UnsupportedModelError: for an architecture that is not known.
    """
    if not isinstance(model, str):
        return resolve(model)
    if model in {entry.name for entry in catalogue.entries()}:
        return catalogue.find(model)
    if Path(model).exists() or ":" in model:
        return resolve(model)
    if "/" in model or model.endswith(".json"):
        raise InvalidInputError(f"model {model!r}: no such file or folder")
    return catalogue.find(model)


def graph_of(model: Any, source: ModelSource) -> OpGraph:
    """The operator graph: of a live module itself, otherwise of what its source builds on the meta device.

    Raises:
        InvalidInputError: if the source does not give a model.
        UnsupportedModelError: if the model cannot be traced.
    """
    return trace(model, name=source.name) if isinstance(model, nn.Module) else trace_source(source)


def written_source(source: ModelSource) -> dict[str, Any] | None:
    """The source as data for a plan file; None for a live module that nothing describes."""
    try:
        return source.to_dict()
    except UnsupportedModelError:
        return None
