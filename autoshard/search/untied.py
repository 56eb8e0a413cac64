r"""What choices of each layer for itself could reach at most: a bound beside the optimum, whose choices are tied.

Layers couple through memory and the residual's layout alone, and that stays one for the model. For any price
:math:`\lambda \ge 0` of a byte, the slowest stage takes at least (Lagrangian duality)

.. math:: \sum_{layers} \min_x \left(t(x) + \lambda\, b(x)\right) - \lambda \cdot room

with t the seconds and b the bytes of a layer under choices x. Equal layers share their minimum, so the tables of the
tied problem answer it. Prices are tried on a grid, refined once at the points that still matter: each gives a bound,
the largest of each point counts.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autoshard.search.exact import LARGEST_GROUP, ExactSearch
from autoshard.simulator.simulator import Simulator
from autoshard.simulator.variables import ILLEGAL_S, Component, Factor

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
PRICES = tuple(2.0**k for k in range(-8, 4))
"""Prices of all of the room, in steps of the fastest choices. [chosen]"""
FINER = tuple(2.0 ** (k / 4) for k in (-3, -2, -1, 1, 2, 3))
"""Factors of a point's best price that are tried after them; a price of 0 is always tried. [chosen]"""


def untied_bound(simulator: Simulator, reached: float = 0.0) -> float:
    """Tokens/s of the cluster that no strategy exceeds whose choices may differ from layer to layer.

    Never below ``reached``, the tied optimum. Costs are the additive ones; limits besides the step's are left aside.
    """
    search, bound = ExactSearch(simulator), reached
    for cell, ceilings in search.ceilings().items():
        held, at = dict(zip(search.shared, cell, strict=True)), np.flatnonzero(ceilings > bound)
        for some in np.split(at, range(LARGEST_GROUP, len(at), LARGEST_GROUP)):
            rates = _bounds(simulator, held, some, bound)
            bound = max(bound, float(rates.max(initial=0.0)))
    return bound


def _bounds(simulator: Simulator, held: Mapping[int, int], index: IntArray, enough: float) -> FloatArray:
    """Tokens/s that no strategy of some points exceeds; coarser where they are not above ``enough``."""
    least = _least_step_s(simulator, held, index, np.zeros(len(index)))
    above = simulator.throughput(index, least) > enough
    index, least = index[above], least[above]
    room = simulator.capacity_bytes - simulator.fixed_bytes(index)
    unit = least / simulator.points.pp[index] / room
    best = np.ones(len(index))
    for factors in (PRICES, FINER):
        centre = best
        for factor in factors:
            step_s = _least_step_s(simulator, held, index, unit * centre * factor)
            best, least = np.where(step_s > least, centre * factor, best), np.maximum(step_s, least)
    ok = (least < ILLEGAL_S) & (simulator.limit_s is None or least <= simulator.limit_s)
    return np.where(ok, simulator.throughput(index, least), 0.0)


def _least_step_s(simulator: Simulator, held: Mapping[int, int], index: IntArray, price: FloatArray) -> FloatArray:
    """A step (seconds) that none at some points goes below, a byte at a price in seconds ([points])."""
    prices = np.zeros(len(simulator.points))
    prices[index] = price
    parts = tuple(_priced(part, prices) for part in simulator.parts)
    twin = simulator.with_parts(parts)
    part_s, _ = ExactSearch(twin).fastest(twin.objective, held, index)
    room = simulator.capacity_bytes - simulator.fixed_bytes(index)
    stages = (simulator.profiles_of(index) * part_s[:, None, :]).sum(-1).max(1) - price * room
    step_s: FloatArray = simulator.points.pp[index] * (stages + simulator.send_s[index, held[0]])
    for v, option in held.items():
        step_s = np.where(simulator.variables[v].legal[index, option], step_s, ILLEGAL_S)
    return step_s


def _priced(part: Component, prices: FloatArray) -> Component:
    """A part with seconds for the bytes it holds."""
    byte_s = tuple(
        Factor(variables=(v,), table=prices[:, None] * table, label="bytes", what="price")
        for v, table in (*part.weights, *part.kv)
    )
    return replace(part, factors=(*part.factors, *byte_s))
