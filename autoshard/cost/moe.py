r"""Routed experts: how many are touched, and how uneven their load is.

A token chooses expert ``e`` with probability ``pi_e``, the ``k`` of them adding up to ``k``. By default every choice is
equally likely, ``pi_e = k / E``; real routers are less even. `choice_shares` has the one-parameter family of a skew
``s``: expert number ``i`` in order of popularity is ``i^-s`` times as popular as the first (Zipf's law). Experts lie on
ranks in an order that has nothing to do with their popularity, which differs from layer to layer.
"""

from functools import lru_cache
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from autoshard.cost.arrays import FloatArray, floats


@lru_cache(maxsize=256)
def choice_shares(experts: int, top_k: int, skew: float) -> FloatArray:
    """Probability that a token chooses each expert: ``1 - exp(-a i^-skew)``, with ``a`` so that they add up to ``k``.

    The form is that of drawing without replacement by exponential clocks whose rates are the popularities, stopped
    when ``top_k`` have rung on average; even for a skew of 0.
    """
    if skew == 0 or top_k >= experts:
        return np.full(experts, top_k / experts)
    popularity = np.arange(1.0, experts + 1.0) ** -skew
    low, high = 0.0, 1.0
    while float(-np.expm1(-high * popularity).sum()) < top_k:
        high *= 2.0
    for _ in range(80):
        middle = (low + high) / 2.0
        if float(-np.expm1(-middle * popularity).sum()) < top_k:
            low = middle
        else:
            high = middle
    return -np.expm1(-high * popularity)


def experts_touched(experts_local: ArrayLike, experts: ArrayLike, top_k: ArrayLike, tokens: ArrayLike) -> FloatArray:
    """Expected number of a rank's experts that get at least one of ``tokens`` tokens: ``E_local (1 - (1 - k/E)^T)``.

    ``tokens`` are those of the whole expert-parallel group, ``experts`` the model's. Exact for uniform routing.
    """
    share = floats(top_k) / floats(experts)
    return floats(experts_local) * (1.0 - (1.0 - share) ** floats(tokens))


def most_touched(experts: int, top_k: int, tokens: ArrayLike, ep: ArrayLike, skew: float = 0.0) -> FloatArray:
    r"""Expected number of touched experts on the rank that has most of them, for which all ranks wait.

    Of the ``K = sum(1 - (1 - pi_e)^T)`` touched experts a rank holding ``m = E / ep`` has a hypergeometric number, with
    correlation ``-1 / (ep - 1)`` between ranks, and the largest of ``ep`` of them is as in `imbalance`:

    .. math:: \frac{K}{ep} + c(ep) \sqrt{m f (1 - f) \frac{E}{E - 1}}, \qquad f = K / E

    at most ``m``, at least one expert. Against simulation within 3 % for ``T k >= 2 ep``, up to 20 % too low for fewer
    pairs than ranks (tested). Broadcasts over ``tokens`` and ``ep``, which divides ``experts``.
    """
    tokens, ep = np.broadcast_arrays(floats(tokens), floats(ep))
    local = experts / ep
    values, where = np.unique(tokens, return_inverse=True)
    missed = (1.0 - choice_shares(experts, top_k, skew)) ** values[:, None]
    share = (1.0 - missed.mean(1))[where].reshape(tokens.shape)
    spread = np.sqrt(local * share * (1.0 - share) * experts / max(experts - 1.0, 1.0))
    found: FloatArray = np.minimum(np.maximum(local * share + _maxima(ep) * spread, np.minimum(1.0, tokens)), local)
    return found


@lru_cache(maxsize=4096)
def _expected_maximum(n: int) -> float:
    """Expected largest of ``n`` independent standard normals (Blom 1958): exact to 2 % for n >= 2."""
    return NormalDist().inv_cdf((n - 0.375) / (n + 0.25))


def _maxima(ep: FloatArray) -> FloatArray:
    values, where = np.unique(ep, return_inverse=True)
    return np.array([_expected_maximum(int(n)) for n in values])[where].reshape(ep.shape)


def imbalance(
    tokens: ArrayLike, experts: ArrayLike, top_k: ArrayLike, ep: ArrayLike, shares: FloatArray | None = None
) -> FloatArray:
    r"""Expected load of the most loaded expert-parallel rank over the mean load; 1 for ``ep = 1`` and many tokens.

    An expert gets a binomial number of the ``T`` tokens, of mean ``T pi_e``; the variance of that number over experts
    is ``S^2 = (T (k - Q) + T^2 (Q - k^2 / E)) / (E - 1)`` with ``Q = sum(pi_e^2)`` (of ``shares``, the model's
    `choice_shares`; ``k^2 / E`` if choices are even). A rank has ``E / ep`` of them, a load that is about normal, with
    correlation ``-1 / (ep - 1)`` between ranks, which makes the expected maximum that of independent loads times
    ``sqrt(ep / (ep - 1))``:

    .. math:: 1 + c(ep) \frac{ep}{T k} \sqrt{\frac{E}{ep} S^2}
       \quad = \quad 1 + c(ep) \sqrt{\frac{ep}{T k} \cdot \frac{E - k}{E - 1}} \quad \text{(even choices)}

    with ``c(n)`` the expected largest of ``n`` normals. Bounded below by one pair on some rank, ``ep / (T k)``, and by
    the rank of the most popular expert, the others being even; above by every token choosing the same rank. Against
    simulation of even choices: within 5 % where ranks have four pairs or more on average, up to 19 % too low for fewer;
    of a skew of 1: within 12 % (tested). Broadcasts over all arguments; ``ep`` divides ``experts``.
    """
    tokens, experts, top_k, ep = floats(tokens), floats(experts), floats(top_k), floats(ep)
    even = top_k**2 / experts
    pairs_per_rank = tokens * top_k / ep
    finite = (experts - top_k) / np.maximum(experts - 1.0, 1.0)
    variance, hottest = finite / pairs_per_rank, floats(1.0)
    if shares is not None:
        q, first = float((shares**2).sum()), float(shares.max())
        one = tokens * (top_k - q) + tokens**2 * np.maximum(q - even, 0.0)
        variance = experts / ep * one / np.maximum(experts - 1.0, 1.0) / pairs_per_rank**2
        others = (top_k - first) * (experts / ep - 1.0) / np.maximum(experts - 1.0, 1.0)
        hottest = ep / top_k * (first + others)
    ratio = np.maximum(1.0 + _maxima(ep) * np.sqrt(variance), hottest)
    worst = ep * np.minimum(top_k, experts / ep) / top_k
    return np.clip(ratio, np.maximum(1.0, np.minimum(1.0 / pairs_per_rank, worst)), np.maximum(worst, 1.0))
