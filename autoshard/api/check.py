"""``check``: is a layout legal on an engine, does it fit, why not, and what is the nearest that would do."""

from collections.abc import Callable, Mapping
from typing import Any

from autoshard.api.models import graph_of, source_of
from autoshard.api.pins import parse_fix
from autoshard.api.relaxations import relaxations
from autoshard.api.verdict import Verdict, concurrency, judge, make_request, nearest_plans
from autoshard.engines import engine_version, find_scheme, position_limit, read_engine, scheme_of_config
from autoshard.hardware import Cluster, parse_cluster


def describe(verdict: Verdict) -> dict[str, Any]:
    """A verdict as JSON data, with the nearest plans, and what would help where there are none."""
    request, launch, c = verdict.request, verdict.request.launch, verdict.chosen
    good = verdict.legal and verdict.fits
    nearest = [] if good else nearest_plans(request)
    helps = [] if good or nearest else relaxations(request)
    return {
        "model": launch.graph.model_name,
        "cluster": launch.cluster.name,
        "engine": {"name": launch.engine.name, "title": launch.engine.title, "version": launch.version},
        "quant": launch.scheme.name,
        "context": request.context,
        "kv_dtype": request.kv_dtype,
        "fixed": dict(request.fixed),
        "legal": verdict.legal,
        "fits": verdict.fits,
        "reasons": [f.to_dict() for f in verdict.reasons],
        "nearest": nearest,
        "relaxations": helps,
        "notes": [f.to_dict() for f in verdict.notes],
        "degrees": c.to_dict(),
        "memory_bytes": verdict.memory.to_dict(),
        "max_concurrency": concurrency(verdict.memory, c),
    }


def check(
    model: Any,
    cluster: Cluster | str = "H100x64",
    *,
    fix: str | Mapping[str, int] | None = None,
    engine: str | None = None,
    version: str | None = None,
    quant: str | None = None,
    context: int = 4096,
    kv_dtype: str = "bf16",
    options: str | Mapping[str, Any] | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """Whether a layout of ``model`` is legal and fits, why not, and the nearest that would do.

    Args:
        model: As `autoshard.autoshard` takes it.
        cluster: A `Cluster`, a name such as ``"H100x8"``, or the path of a YAML file.
        fix: Degrees to hold (``pp dp tp ep etp replicas``); what is not named is free.
        engine: ``vllm``, ``sglang``, ``trtllm``, ``transformers``, or None for what autoshard itself executes.
        version: Of the engine; the one its rules were written for by default.
        quant: How weights are stored (``bf16 fp8 fp8_block mxfp4 nvfp4 int4 ...``); what the config says by default.
        context: Tokens of the one request that must fit.
        kv_dtype: Of the KV cache.
        options: What the launch sets besides (``mtp=1``); each engine lists its own.
        progress: Is told, in a few words, each step that begins.

    Returns:
        ``legal``, ``fits``, ``reasons`` (every rule that is broken: ``rule``, ``values``, ``message``), ``nearest``
        (legal plans that fit), ``relaxations`` (verified, where there are none), ``notes``, ``degrees``,
        ``memory_bytes`` of the rank that binds, and ``max_concurrency`` at the context. A verdict is an answer, never
        an exception.

    Raises:
        InvalidInputError: for a mistake in what was given.
        UnsupportedModelError: for a model that cannot be traced.
    """
    where = parse_cluster(cluster) if isinstance(cluster, str) else cluster
    parse_fix(fix)
    engine_version(read_engine(engine or "torch"), version)
    source = source_of(model)
    config = {**(getattr(source, "whole", None) or {}), **(getattr(source, "config", None) or {})}
    scheme = scheme_of_config(config.get("quantization_config")) if quant is None else find_scheme(quant)
    progress(f"tracing {source.name}")
    graph = graph_of(model, source)
    progress("asking the rules")
    request = make_request(
        graph,
        where,
        fix=fix,
        engine=engine,
        version=version,
        quant=scheme,
        context=context,
        kv_dtype=kv_dtype,
        options=options,
        positions=position_limit(config),
    )
    return describe(judge(request))
