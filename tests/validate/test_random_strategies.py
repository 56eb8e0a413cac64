"""Any legal combination of choices, not only the named patterns, equals the unsharded model."""

import os

from autoshard.validate import Case, ModelJob, validate
from tests.validate.sources import SOURCES, graph_of
from tests.validate.strategies import random_strategies

COUNT = int(os.environ.get("AUTOSHARD_RANDOM_STRATEGIES", "8"))
SEED = int(os.environ.get("AUTOSHARD_RANDOM_SEED", "20"))


def test_random_strategies_equal_the_unsharded_model() -> None:
    jobs = []
    for name in ("mixtral", "qwen3-moe", "gpt-moe", "olmoe-2-kv-heads", "llama-biases", "llama-tied"):
        drawn = random_strategies(graph_of(name), 4, COUNT, SEED)
        cases = tuple(Case(name=f"{name} seed {SEED} no {i}", strategy=s) for i, s in enumerate(drawn))
        jobs.append(ModelJob(source=SOURCES[name].to_dict(), graph=graph_of(name), cases=cases))
    reports = validate(jobs, nproc=4, dtypes=("float64",), timeout_s=280)
    assert len(reports) == 6 * COUNT
    failed = [f"{r.name} {r.degrees}: {r.difference}" for r in reports if not r.passed]
    assert not failed, "\n".join(failed)
