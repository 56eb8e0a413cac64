"""What an explanation says is checked against pinning the same choice, which goes another way through the tables."""

from dataclasses import replace

import pytest

from autoshard import Plan, autoshard
from autoshard.api.build_plan import degrees_dict
from autoshard.api.explain import difference, explain
from autoshard.api.plan_cluster import cluster_of
from autoshard.errors import InvalidInputError, PlanMismatchError
from autoshard.hardware import parse_cluster
from autoshard.search.exact import ExactSearch
from autoshard.simulator import Simulator
from autoshard.workload import Workload


@pytest.fixture(scope="module")
def plan() -> Plan:
    return autoshard("olmoe-1b-7b", cluster="H100x8", workload=Workload(tpot_ms=10), search="exact")


def test_terms_and_kinds_sum_to_the_step(plan: Plan) -> None:
    found = explain(plan.data)
    step = plan.predicted.step_s
    assert sum(found["terms"].values()) == pytest.approx(step)
    assert sum(found["kinds"].values()) == pytest.approx(step)
    assert found["predicted"]["tokens_per_s_per_gpu"] == pytest.approx(found["saved_tokens_per_s_per_gpu"])


def test_an_alternative_costs_what_pinning_it_costs(plan: Plan) -> None:
    """At the plan's degrees, the optimum with a choice pinned over the optimum; both by the full search."""
    held = degrees_dict(plan.degrees)
    free = replace(plan.data.workload, tpot_ms=None)
    best = ExactSearch(Simulator(plan.graph, parse_cluster("H100x8"), free, fixed=held)).run().tokens_per_s
    found = explain(plan.data)["choices"]
    checked = 0
    for key in ("layers/q", "layers/router", "epilogue/head"):
        for option in found[key]["options"]:
            if option["relative"] is not None:
                pinned = Simulator(
                    plan.graph, parse_cluster("H100x8"), free, fixed=held, pinned={key: option["choice"]}
                )
                assert option["relative"] == pytest.approx(ExactSearch(pinned).run().tokens_per_s / best), (key, option)
                checked += 1
    assert checked >= 3
    # The plan is the optimum: every choice taken is one of the best.
    for key, op in found.items():
        taken = next(o for o in op["options"] if o["choice"] == op["taken"])
        assert taken["relative"] == pytest.approx(1.0), key


def test_the_next_best_is_the_plans_first_alternative(plan: Plan) -> None:
    found = explain(plan.data)["next_best"]
    first = plan.data.alternatives[0]
    assert found["degrees"] == first.degrees
    assert found["tokens_per_s_per_gpu"] == pytest.approx(first.tokens_per_s_per_gpu)
    second = explain(plan.data, alternative=2)["next_best"]
    assert second["degrees"] == plan.data.alternatives[1].degrees
    with pytest.raises(InvalidInputError, match="alternative 9: the plan has 5, counted from 1"):
        explain(plan.data, alternative=9)


def test_two_plans_apart(plan: Plan) -> None:
    other = autoshard(
        "olmoe-1b-7b", cluster="H100x8", workload=Workload(tpot_ms=10), search="exact", fix="tp=2", pin="o=none"
    )
    found = difference(plan.data, other.data)
    assert found["same_model"] and found["workload"] == {}
    assert found["tokens_per_s_per_gpu"] == [
        plan.predicted.tokens_per_s_per_gpu,
        other.predicted.tokens_per_s_per_gpu,
    ]
    moved = sum(t["seconds"][1] - t["seconds"][0] for t in found["terms"])
    assert moved == pytest.approx(other.predicted.step_s - plan.predicted.step_s)
    assert difference(plan.data, plan.data)["terms"] == []


def test_another_cluster_is_refused(plan: Plan) -> None:
    with pytest.raises(PlanMismatchError, match="num_devices = 8"):
        cluster_of(plan.data, parse_cluster("H100x16"))
