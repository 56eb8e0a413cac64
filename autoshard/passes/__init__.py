"""Compiler passes over fx graphs: the plan, written onto the nodes of the graph it was searched for."""

from autoshard.passes.annotate import KEY, OpAnnotation, ParameterAnnotation, annotate

__all__ = ["KEY", "OpAnnotation", "ParameterAnnotation", "annotate"]
