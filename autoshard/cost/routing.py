r"""Load of the most loaded expert-parallel rank when experts are unevenly popular.

Popularities are drawn from a bounded power law with density :math:`x^{-\alpha}` and scaled to the ``T k`` pairs; an
expert gets at most ``T`` of them. It is how the measured tables make their ``power_law_1.2`` rows (there the bounds are
1 and 0.8 T, or 0.01 and 2 where there are fewer pairs than experts). The mean over a few seeded draws is taken, as
experts are placed on ranks in an order that has nothing to do with their popularity.
"""

from functools import lru_cache

import numpy as np

_DRAWS = 24


@lru_cache(maxsize=16384)
def power_law_load(
    tokens: int, experts: int, top_k: int, ranks: int, alpha: float, draws: int = _DRAWS
) -> tuple[float, float]:
    """Pairs on the most loaded of ``ranks`` ranks, and how many of its experts get any.

    Args:
        tokens: Tokens of the whole expert-parallel group.
        experts: Experts of the model; ``ranks`` divides them.
        top_k: Experts a token.
        ranks: Expert-parallel ranks.
        alpha: Exponent of the popularity law, above 1; larger is less even.
        draws: Seeded draws that are averaged.
    """
    lowest, highest = (1.0, 0.8 * tokens) if tokens * top_k > experts else (0.01, 2.0)
    exponent = 1.0 - alpha
    uniform = np.random.default_rng(0).random((draws, experts))
    drawn = ((highest**exponent - lowest**exponent) * uniform + lowest**exponent) ** (1.0 / exponent)
    loads = np.minimum(drawn / drawn.sum(1, keepdims=True) * tokens * top_k, tokens).round()
    by_rank = loads.reshape(draws, ranks, experts // ranks)
    worst = by_rank[np.arange(draws), by_rank.sum(2).argmax(1)]
    pairs = max(float(worst.sum(1).mean()), 0.5)
    return pairs, min(max(float((worst > 0).sum(1).mean()), 0.5), pairs)
