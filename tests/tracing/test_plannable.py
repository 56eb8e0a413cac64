"""Every catalogue model can be planned: the exact search finds a feasible strategy on a cluster that holds it."""

import pytest
from autoshard_models import CATALOGUE

from autoshard.api.solve import make_simulator
from autoshard.errors import NoFeasiblePlanError
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.tracing import resolve, trace_source
from autoshard.workload import Workload

CLUSTERS = ("H100x64", "H100x256", "H100x1024")


def _rate(graph, clusters=CLUSTERS, **options):
    """Tokens/s of the best strategy on the first cluster that holds the model."""
    for name in clusters:
        simulator = make_simulator(graph, parse_cluster(name), Workload(**options))
        try:
            return ExactSearch(simulator).run().tokens_per_s
        except NoFeasiblePlanError:
            continue
    return 0.0


@pytest.mark.wide
@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_every_catalogue_model_is_plannable(name):
    assert _rate(trace_source(resolve(CATALOGUE[name])), context=16384) > 0


@pytest.mark.parametrize(
    "name", ["mixtral-8x7b", "deepseek-v3", pytest.param("qwen3-next-80b-a3b", marks=pytest.mark.wide)]
)
def test_reduced_models_are_plannable(name):
    source = resolve(CATALOGUE[name]).reduced(tp=2, ep=2, nproc=4)
    assert _rate(trace_source(source), ("H100x8",), context=2048) > 0
