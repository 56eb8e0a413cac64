import functools

import pytest
from autoshard_models import CATALOGUE

from autoshard.tracing import resolve, trace_source


@functools.cache
def _traced(name):
    return trace_source(resolve(CATALOGUE[name]))


@pytest.fixture(scope="session")
def traced():
    """Operator graph of a catalogue model at full size, traced once per session."""
    return _traced
