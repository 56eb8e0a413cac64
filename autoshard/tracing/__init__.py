"""Models in, operator graphs out: sources, folded export, and the recognition of fused ops by what they compute."""

from autoshard.tracing.export import ExportedModel, export_graph, meta_copy
from autoshard.tracing.resolve import resolve
from autoshard.tracing.source import ConfigSource, FactorySource, ModelSource, ModuleSource, source_from_dict
from autoshard.tracing.trace import TracedModel, trace, trace_model, trace_source

__all__ = [
    "ConfigSource",
    "ExportedModel",
    "FactorySource",
    "ModelSource",
    "ModuleSource",
    "TracedModel",
    "export_graph",
    "meta_copy",
    "resolve",
    "source_from_dict",
    "trace",
    "trace_model",
    "trace_source",
]
