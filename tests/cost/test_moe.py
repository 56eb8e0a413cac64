import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.cost import experts_touched, imbalance


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
    chosen = rng.random((500, tokens, experts)).argsort(axis=2)[:, :, :top_k] // (experts // ep)
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
