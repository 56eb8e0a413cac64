"""A measured search: what it keeps, resumes and refuses (a pretended clock), and once on two real ranks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from autoshard.api import measured
from autoshard.api.measured import Settings, search_measured
from autoshard.errors import InvalidInputError
from autoshard.sharding import Strategy
from autoshard.validate import ModelJob
from autoshard.validate.timed import Measured

MODEL = "olmoe-1b-7b"


class Ranks:
    """Pretends to run: replicated choices take 1 ms each, tp 2 ms more; the first strategy of all fails."""

    def __init__(self) -> None:
        self.launches: list[tuple[int, int]] = []

    def __call__(self, job: ModelJob, strategies: Sequence[Strategy], **given: Any) -> list[Measured]:
        assert given["nproc"] == 2 and given["decode"] and job.sequences == 4
        assert all(s.degrees.num_devices == 2 and s.degrees.batch == 4 for s in strategies)
        first = not self.launches
        self.launches.append((len(strategies), given["repeats"]))
        found = []
        for i, s in enumerate(strategies):
            step_s = 1e-3 * (2 * s.degrees.tp + sum(c is None for _, c in s.choices))
            found.append(
                Measured(samples_s=(), failure="logits differ by 1.0e+00")
                if first and i == 0
                else Measured(samples_s=(step_s, step_s * 1.5, step_s * 0.5))
            )
        return found


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    found = Ranks()
    monkeypatch.setattr(measured, "time_strategies", found)
    return found


def run(state: Path | None = None, budget: int = 12, **settings: Any) -> dict[str, Any]:
    return search_measured(MODEL, Settings(nproc=2, **settings), budget=budget, seed=3, state=state)


def test_what_was_measured_is_told_and_resumed(ranks: Ranks, tmp_path: Path) -> None:
    state = tmp_path / "state.jsonl"
    found = run(state)
    # 6 strategies, three rounds of 2, then the best of them once more with three times the steps.
    assert [n for n, _ in ranks.launches[:-1]] == [6, 2, 2, 2]
    assert ranks.launches[-1] in ((3, 15), (4, 15))
    assert found["launches"] == len(ranks.launches) and found["calls"] == len(found["runs"]) == 12
    assert found["runs"][0]["failure"] == "logits differ by 1.0e+00" and found["runs"][0]["tokens_per_s"] == 0
    one = found["runs"][1]
    assert one["tokens_per_s"] == pytest.approx(4 / one["step_s"])  # 4 sequences, a token each a step
    assert (one["least_s"], one["most_s"]) == pytest.approx((one["step_s"] / 2, one["step_s"] * 1.5))
    assert found["best"]["tokens_per_s"] == max(r["tokens_per_s"] for r in found["runs"])
    assert found["measured_on"]["backend"] == "gloo" and found["measured_on"]["sequences"] == 4
    assert found["megatron"]["megatron"] and found["gain_over_megatron"] >= 0
    assert "predicted" not in json.dumps(found)

    # Interrupted after 7 lines: the same search goes on, and measures only what is missing.
    lines = state.read_text().splitlines()
    assert len(lines) == 13
    state.write_text("\n".join(lines[:8]) + "\n" + lines[8][:-9])  # cut off in the ninth line
    ranks.launches = [(0, 0)]
    again = run(state)
    assert again["resumed"] == 7 and sum(n for n, r in ranks.launches[1:] if r == 5) == 5
    assert again["runs"] == found["runs"] and again["best"] == found["best"]
    assert state.read_text().splitlines() == lines

    with pytest.raises(InvalidInputError, match=r"holds other measurements: context=32, not 64; name another file"):
        run(state, context=64)
    for line in ('{"row": [0], "samples_s": [0.1], "failure": null}', "[" * 100_000):
        state.write_text(f"{lines[0]}\n{line}\n")
        with pytest.raises(InvalidInputError, match="is no state of a measured search"):
            run(state)
    state.write_text('{"row": 1}\n')
    with pytest.raises(InvalidInputError, match="is no state of a measured search"):
        run(state)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"nproc": 0}, "nproc=0 must be from 1 to 16"),
        ({"nproc": 99}, "nproc=99 must be from 1 to 16"),
        ({"phase": "serve"}, "cannot measure phase 'serve': known are decode, prefill"),
        ({"nproc": 4, "sequences": 6}, "sequences=6 must be a multiple of nproc=4, .* 8 is"),
        ({"device": "cuda", "nproc": 16}, "cannot measure 16 ranks on 'cuda': this machine has cpu"),
        ({"repeats": 0}, "repeats=0 must be from 1 to 1,000"),
        ({"timeout_s": float("nan")}, "timeout_s=nan must be a positive number"),
    ],
)
def test_settings_that_mean_nothing_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInputError, match=says):
        Settings(**settings).checked()


@pytest.mark.wide
def test_two_real_ranks(tmp_path: Path) -> None:
    found = run(tmp_path / "state.jsonl", budget=4, repeats=2)
    assert len(found["runs"]) == 4 and all(r["failure"] is None for r in found["runs"])
    assert all(
        len(json.loads(line)["samples_s"]) == 2 for line in (tmp_path / "state.jsonl").read_text().splitlines()[1:]
    )
    assert found["best"]["step_s"] > 0
    prefill = run(budget=2, repeats=1, phase="prefill", context=8)
    assert all(r["failure"] is None for r in prefill["runs"])
    best = prefill["runs"][0]
    assert best["tokens_per_s"] == pytest.approx(4 * 8 / best["step_s"])
