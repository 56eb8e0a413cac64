"""Times strategies on real ranks: the step that the slowest rank takes, after one to warm up."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autoshard.sharding import Strategy
from autoshard.validate.job import Case, Job, ModelJob
from autoshard.validate.launch import launch
from autoshard.validate.report import TOLERANCE

DTYPE = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Seconds of each step measured (of the slowest rank), or why there are none."""

    samples_s: tuple[float, ...]
    failure: str | None = None

    @property
    def step_s(self) -> float:
        """The median; infinite where nothing was measured."""
        return statistics.median(self.samples_s) if self.samples_s else math.inf


def time_strategies(
    model: ModelJob,
    strategies: Sequence[Strategy],
    *,
    nproc: int,
    repeats: int,
    decode: bool,
    device: str = "cpu",
    timeout_s: float = 300.0,
    python_path: Sequence[Path] = (),
) -> list[Measured]:
    """Measure strategies of ``nproc`` ranks in one launch, in order.

    Decode is a prompt and ``1 + repeats`` cached steps, prefill as many prompts; the first is not counted. A strategy
    whose logits are not the unsharded model's has failed, however fast it is.

    Raises:
        LaunchError: when ranks die or time is over.
    """
    prompt = model.lengths[0]
    timed = model.model_copy(
        update={
            "lengths": (prompt, *(1,) * (1 + repeats)) if decode else (prompt,),
            "cases": tuple(Case(name=str(i), strategy=s) for i, s in enumerate(strategies)),
            "dtypes": (DTYPE,),
        }
    )
    passes = 1 if decode else 1 + repeats
    job = Job(models=(timed,), dtypes=(DTYPE,), device=device, timeout_s=timeout_s, passes=passes)
    by_rank = launch(job, nproc, python_path=python_path)
    found = []
    for results in zip(*by_rank, strict=True):
        failure = next((r["exception"] for r in results if "exception" in r), None)
        worst = max((r.get("error", 0.0) for r in results), default=0.0)
        if failure is None and not worst <= TOLERANCE[DTYPE]:
            failure = f"logits differ by {worst:.2e}"
        if failure is not None:
            found.append(Measured(samples_s=(), failure=failure))
            continue
        seconds = [r["seconds"] for r in results]
        steps = [max(rank[p][s] for rank in seconds) for p in range(passes) for s in range(len(timed.lengths))]
        found.append(Measured(samples_s=tuple(steps[2:] if decode else steps[1:])))
    return found
