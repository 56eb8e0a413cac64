"""The simulator: predicted time, throughput and memory of strategies, batched over degree points and choices.

Read `points` (which degrees), `work` and `tables` (what ops and tensors cost), then `simulator` (stages, limits).
"""

from autoshard.sharding.degrees import partition
from autoshard.simulator.measures import Measure
from autoshard.simulator.points import DEGREE_COMPONENTS, PINNABLE, Points, make_points
from autoshard.simulator.simulator import Evaluation, Simulator
from autoshard.simulator.terms import Term, terms
from autoshard.simulator.variables import Component, Factor, Variable

__all__ = [
    "DEGREE_COMPONENTS",
    "PINNABLE",
    "Component",
    "Evaluation",
    "Factor",
    "Measure",
    "Points",
    "Simulator",
    "Term",
    "Variable",
    "make_points",
    "partition",
    "terms",
]
