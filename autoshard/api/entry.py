"""``autoshard(model, cluster)``: from a model definition to a sharding plan."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from autoshard.api.build_plan import build_plan
from autoshard.api.dealing import as_solved, deal, fastest, others
from autoshard.api.models import graph_of, source_of, written_source
from autoshard.api.pins import check_degrees, check_stages, parse_fix, parse_pin, parse_space, parse_stages, pins_for
from autoshard.api.plan import Plan
from autoshard.api.solve import ALGORITHMS, make_simulator, solve
from autoshard.errors import InvalidInputError
from autoshard.hardware import Cluster, parse_cluster
from autoshard.sharding import Choice
from autoshard.workload import Workload

EVEN = "even"
"""Instead of stages: as many layers each as can be."""


def autoshard(
    model: Any,
    cluster: Cluster | str,
    workload: Workload | None = None,
    *,
    search: str = "rl",
    budget: int = 4000,
    seed: int = 0,
    fix: str | Mapping[str, int] | None = None,
    pin: str | Mapping[str, Choice] | None = None,
    stages: str | Sequence[int] | None = None,
    polish: bool = True,
    allow_uneven: bool = False,
    warm_start: str | Path | None = None,
    save_policy: str | Path | None = None,
    state: str | Path | None = None,
    space: str | Sequence[str] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """Find a sharding plan for serving ``model`` on ``cluster``.

    Args:
        model: A ``torch.nn.Module`` (on any device, meta included; it is left as it is), a transformers config, the
            path of a ``config.json`` or its folder, ``"package.module:factory"``, or a catalogue name.
        cluster: A `Cluster`, a name such as ``"H100x64"``, or the path of a YAML file.
        workload: What is served; decode at a context of 4096 by default.
        search: ``rl`` (the paper's agent, improved), ``exact``, ``rl-paper`` (as published), ``megatron``,
            ``anneal``, ``mcmc``, ``evolution``, ``walk`` or ``random``.
        budget: Simulator calls that the search may use.
        seed: Of the search; the same seed gives the same plan.
        fix: Degrees to hold (``pp dp tp ep etp batch replicas``), as a mapping or ``"tp=8,ep=8"``.
        pin: Choices to hold, by op name (in every block) or ``"<block>/<op>"``: 0 shards the output, 1 what is
            contracted, None replicates; a mapping or ``"q=0,o=1,layers/k=none"``. ``residual`` and
            ``dispatch`` are the model's own.
        stages: Layers of every pipeline stage, as numbers or ``"20,12"``, or ``"even"``. Without it layers are dealt
            evenly for the search, then by time and bytes where that is faster (`autoshard.api.dealing`).
        polish: Take the proven optimum where it is better than what the search found.
        allow_uneven: Whether heads and widths that do not divide may be filled up with zeros. A vocabulary, experts and
            layers may always be uneven.
        warm_start: File of a policy that ``rl`` or ``rl-paper`` starts from, saved on any model, cluster or workload.
        save_policy: Where the search writes the policy that it trained longest.
        state: File in which the search keeps every score, so that an interrupted one continues to the same result.
        space: Parts of the wider space to search as well (`autoshard.sharding.wider`): ``"kv-sequence"``. Such a plan
            is simulated only.
        progress: Is told, in a few words, each step that begins.

    Returns:
        The plan, its prediction and the proven optimum beside it.

    Raises:
        InvalidInputError: for a mistake in what was given; one line with the rule and what would work.
        UnsupportedModelError: for a model that cannot be traced.
        NoFeasiblePlanError: if nothing fits in memory and meets the limits, with the smallest change that would help.
    """
    fixed, pinned = parse_fix(fix), parse_pin(pin)
    wider = parse_space(space)
    given = parse_stages(None if stages == EVEN else stages, fixed)
    if search not in ALGORITHMS:
        raise InvalidInputError(f"unknown search {search!r}; known are {', '.join(ALGORITHMS)}")
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    source = source_of(model)
    progress(f"tracing {source.name}")
    graph = graph_of(model, source)
    check_degrees(graph, fixed, uneven=allow_uneven)
    check_stages(graph, given)
    progress(f"building the cost tables of {where.name}")
    simulator = make_simulator(
        graph,
        where,
        workload or Workload(),
        fixed=fixed,
        pinned=pins_for(graph, pinned, wider),
        stages=given,
        uneven=allow_uneven,
        wider=wider,
    )
    progress(f"searching {len(simulator.points)} degree points")
    solution = solve(
        simulator,
        algorithm=search,
        budget=budget,
        seed=seed,
        polish=polish,
        warm_start=None if warm_start is None else Path(warm_start),
        save_policy=None if save_policy is None else Path(save_policy),
        state=None if state is None else Path(state),
    )
    progress("writing down the plan")
    even = stages == EVEN
    dealt, rest = as_solved(solution) if even else deal(solution), others(solution, even=even)
    if polish and not even:
        solution, dealt, rest = fastest(solution, dealt, rest)
    return Plan(build_plan(solution, written_source(source), dealt, [other for _, other in rest]))
