import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost import choice_shares, experts_touched, imbalance, most_touched


def test_experts_touched_by_hand() -> None:
    # 8 experts, top 2: one token touches 2; two tokens 8 (1 - (3/4)^2) = 3.5; half of the experts, half of that.
    assert experts_touched(8, 8, 2, [1, 2]).tolist() == pytest.approx([2.0, 3.5])
    assert experts_touched(4, 8, 2, 2) == pytest.approx(1.75)
    assert experts_touched(16, 128, 8, 100000) == pytest.approx(16.0)


@pytest.mark.parametrize(
    ("experts", "top_k", "ep", "tokens"), [(8, 2, 4, 16), (128, 8, 8, 64), (128, 8, 64, 256), (64, 8, 2, 16)]
)
def test_imbalance_matches_simulated_routing(experts: int, top_k: int, ep: int, tokens: int) -> None:
    rng = np.random.default_rng(0)
    chosen = rng.random((250, tokens, experts)).argpartition(top_k - 1, axis=2)[:, :, :top_k] // (experts // ep)
    loads = np.stack([(chosen == rank).sum(axis=(1, 2)) for rank in range(ep)], axis=1)
    simulated = loads.max(axis=1).mean() / (tokens * top_k / ep)
    assert imbalance(tokens, experts, top_k, ep) == pytest.approx(simulated, rel=0.05)


def test_imbalance_at_its_edges() -> None:
    assert imbalance(7, 8, 2, 1) == 1.0
    assert imbalance(1e9, 128, 8, 8) == pytest.approx(1.0, abs=1e-3)
    # one token, its 8 experts on 64 ranks: some rank has at least one pair, the mean is 1/8
    assert imbalance(1, 128, 8, 64) >= 8.0
    # every token chooses every expert: perfectly even
    assert imbalance(5, 8, 8, 4) == 1.0


@given(
    tokens=st.integers(1, 10**6), shape=st.sampled_from([(8, 2), (64, 8), (128, 8), (256, 8)]), log_ep=st.integers(0, 3)
)
def test_imbalance_is_bounded_and_falls_with_tokens(tokens: int, shape: tuple[int, int], log_ep: int) -> None:
    experts, top_k = shape
    ep = 2**log_ep
    ratio = float(imbalance(tokens, experts, top_k, ep))
    assert 1.0 <= ratio <= ep
    assert imbalance(2 * tokens, experts, top_k, ep) <= ratio


def test_batched_equals_scalar() -> None:
    tokens, ep = np.array([1, 10, 100])[:, None], np.array([1, 2, 8])
    expected = [[float(imbalance(t, 64, 8, e)) for e in ep] for t in tokens[:, 0]]
    assert imbalance(tokens, 64, 8, ep).tolist() == expected


def test_shares_of_a_skew_add_up() -> None:
    assert choice_shares(8, 2, 0.0).tolist() == [0.25] * 8
    shares = choice_shares(128, 8, 1.0)
    assert shares.sum() == pytest.approx(8.0) and (np.diff(shares) < 0).all() and shares[0] < 1
    # clocks: -log(1 - pi) is proportional to 1 / i
    rates = -np.log1p(-shares)
    assert rates[:4] * [1, 2, 3, 4] == pytest.approx(np.full(4, rates[0]))


@pytest.mark.parametrize(
    ("experts", "top_k", "ep", "tokens", "skew"),
    [(128, 8, 8, 4, 0.0), (128, 8, 4, 16, 0.0), (128, 8, 8, 16, 1.0), (256, 8, 8, 64, 1.0), (128, 8, 32, 16, 1.0)],
)
def test_most_loaded_rank_matches_simulated_routing(
    experts: int, top_k: int, ep: int, tokens: int, skew: float
) -> None:
    rng, shares = np.random.default_rng(0), choice_shares(experts, top_k, skew)
    touched, pairs = [], []
    for _ in range(100):
        counts = (rng.random((tokens, experts)) < rng.permutation(shares)).sum(0).reshape(ep, -1)
        touched.append((counts > 0).sum(1).max())
        pairs.append(counts.sum(1).max())
    assert most_touched(experts, top_k, tokens, ep, skew) == pytest.approx(np.mean(touched), rel=0.06)
    ratio = imbalance(tokens, experts, top_k, ep, shares)
    assert ratio * tokens * top_k / ep == pytest.approx(np.mean(pairs), rel=0.12)


def test_most_touched_at_its_edges() -> None:
    # one rank has all: 8 (1 - (3/4)^2) = 3.5; many tokens touch all 16 of a rank; one token touches at least one
    assert most_touched(8, 2, 2, 1) == pytest.approx(3.5)
    assert most_touched(128, 8, 10**6, 8) == pytest.approx(16.0)
    assert most_touched(128, 1, 1, 128) == pytest.approx(1.0)
    # 128 experts, 8 a token, 4 tokens, 8 ranks: 29.1 touched, f = 0.2275, 3.64 a rank on average;
    # c(8) = 1.4245 (Blom), so 3.64 + 1.4245 sqrt(16 * 0.2275 * 0.7725 * 128 / 127) = 6.05
    assert most_touched(128, 8, 4, 8) == pytest.approx(6.05, abs=0.01)
    assert most_touched(128, 8, [4, 16], [8, 1]).tolist() == pytest.approx([6.05, 82.4], abs=0.05)
