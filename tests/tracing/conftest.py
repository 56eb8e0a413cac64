import functools

import pytest
from autoshard_models import CATALOGUE

from autoshard.tracing import resolve, trace_source
from tests.tracing.families import FAMILIES


@functools.cache
def _traced(name):
    return trace_source(resolve(CATALOGUE[name]))


@functools.cache
def _family(name):
    return trace_source(resolve({"model_type": name, **FAMILIES[name]}))


@pytest.fixture(scope="session")
def traced():
    """Operator graph of a catalogue model at full size, traced once per session."""
    return _traced


@pytest.fixture(scope="session")
def family():
    """Operator graph of a small model of an architecture, traced once per session."""
    return _family
