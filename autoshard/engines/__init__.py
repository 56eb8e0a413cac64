"""Serving engines as data: what each accepts, how it stores and places weights, and what it leaves to the KV cache.

Read a file of ``data/`` first, then `legality` (rules) and `memory` (bytes of a rank). Nothing here runs an engine.
"""

from autoshard.engines.legality import Finding, Judge, Launch
from autoshard.engines.memory import MemoryModel, RankMemory
from autoshard.engines.positions import position_limit
from autoshard.engines.profile import Engine, Rule, engine_names, engine_version, read_engine
from autoshard.engines.quantisation import Scheme, find_scheme, scheme_of_config, schemes
from autoshard.engines.weights import WeightBytes

__all__ = [
    "Engine",
    "Finding",
    "Judge",
    "Launch",
    "MemoryModel",
    "RankMemory",
    "Rule",
    "Scheme",
    "WeightBytes",
    "engine_names",
    "engine_version",
    "find_scheme",
    "position_limit",
    "read_engine",
    "scheme_of_config",
    "schemes",
]
